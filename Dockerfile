# fencepost alone, in an image without a shell (the last stage), and the masters of docker-compose.yml (--target demo-master).
# The Rust is that of rust-version in Cargo.toml. All bases are Debian 12; --build-arg replaces one.
ARG RUST_IMAGE=rust:1.95.0-bookworm
ARG PYTHON_IMAGE=python:3.12.8-slim-bookworm
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${RUST_IMAGE} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends protobuf-compiler libprotobuf-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
# What `--version` shows: `docker build --build-arg COMMIT=$(git rev-parse --short=12 HEAD)`. The history is not in the image.
ARG COMMIT=unknown
# Symbols would be most of the image.
ENV FENCEPOST_COMMIT=$COMMIT CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/build/target \
    cargo build --locked --release --package fencepost \
    && cp target/release/fencepost / \
    && mkdir /state

FROM ${PYTHON_IMAGE} AS demo-master
COPY --from=build /fencepost /usr/local/bin/fencepost

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="fencepost" \
      org.opencontainers.image.description="Lets a request through only while its sender still holds the lock" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
COPY --from=build /fencepost /usr/local/bin/fencepost
# A new volume over it takes its owner from here.
COPY --from=build --chown=65532:65532 /state /var/lib/fencepost
# The base image calls this user nonroot. Kubernetes' runAsNonRoot wants its number.
USER 65532:65532
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s \
    CMD ["/usr/local/bin/fencepost", "ready", "--config", "/etc/fencepost/fencepost.toml"]
# SIGTERM lets requests finish. `docker stop` waits 10 s for that: give it more (`--time 40`).
ENTRYPOINT ["/usr/local/bin/fencepost"]
CMD ["serve", "--config", "/etc/fencepost/fencepost.toml"]
