//! How the others are configured: each compares the two headers with constants, on one thread.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::tls_files::TlsFiles;
use crate::cli::COMPARED_CONNECTIONS_MAX;
use crate::token::Token;

/// Where a peer is, and what it guards.
pub(super) struct Site<'a> {
    /// For HTTP/1.1.
    pub(super) http1: SocketAddr,
    /// For cleartext HTTP/2.
    pub(super) h2c: SocketAddr,
    /// For both by TLS.
    pub(super) tls: SocketAddr,
    pub(super) worker: SocketAddr,
    pub(super) token: &'a Token,
    pub(super) files: &'a TlsFiles,
    /// For what it writes.
    pub(super) directory: &'a Path,
}

/// How many connections of clients each may have: some for whoever looks whether it is there.
const CLIENTS_MAX: u64 = COMPARED_CONNECTIONS_MAX + 50;
/// The same with the worker's.
const CONNECTIONS_MAX: u64 = 2 * CLIENTS_MAX;

/// HAProxy's file.
pub(super) fn haproxy(site: &Site<'_>) -> String {
    let Site { http1, h2c, tls, worker, token, files, directory: _ } = site;
    let (owner, revision, pair) = (token.owner_text(), token.revision(), files.pair.display());
    format!(
        "global\n nbthread 1\n maxconn {CLIENTS_MAX}\n log stderr local0 emerg\n ssl-default-bind-options ssl-min-ver TLSv1.3\n\
         defaults\n mode http\n timeout connect 5s\n timeout client 120s\n timeout server 30s\n timeout http-keep-alive 120s\n \
         http-reuse always\n option http-keep-alive\n\
         frontend fence\n bind {http1}\n bind {h2c} proto h2\n bind {tls} ssl crt {pair} alpn h2,http/1.1\n \
         http-request deny deny_status 403 unless {{ req.hdr(fence-owner) -m str {owner} }} {{ req.hdr(fence-revision) -m str {revision} }}\n \
         default_backend worker\n\
         backend worker\n server worker {worker} pool-max-conn 512 pool-purge-delay 60s\n"
    )
}

/// nginx's file.
pub(super) fn nginx(site: &Site<'_>) -> String {
    let Site { http1, h2c, tls, worker, token, files, directory } = site;
    let (owner, revision, directory) = (token.owner_text(), token.revision(), directory.display());
    let (certificate, key) = (files.certificate.display(), files.key.display());
    format!(
        "worker_processes 1;\ndaemon off;\npid {directory}/nginx.pid;\nerror_log stderr crit;\n\
         worker_rlimit_nofile {CONNECTIONS_MAX};\nevents {{ worker_connections {CONNECTIONS_MAX}; multi_accept on; }}\n\
         http {{\n access_log off;\n keepalive_requests 1000000000;\n keepalive_timeout 120s;\n client_body_buffer_size 128k;\n \
         client_body_temp_path {directory}/nginx-body;\n proxy_temp_path {directory}/nginx-proxy;\n \
         fastcgi_temp_path {directory}/nginx-fastcgi;\n uwsgi_temp_path {directory}/nginx-uwsgi;\n scgi_temp_path {directory}/nginx-scgi;\n \
         upstream worker {{ server {worker}; keepalive 256; keepalive_requests 1000000000; }}\n \
         proxy_buffers 32 4k;\n \
         map \"$http_fence_owner:$http_fence_revision\" $fence_ok {{ default 0; \"{owner}:{revision}\" 1; }}\n \
         proxy_http_version 1.1;\n proxy_set_header Connection \"\";\n proxy_request_buffering off;\n \
         server {{ listen {http1} backlog=4096; listen {h2c} http2 backlog=4096; listen {tls} ssl http2 backlog=4096;\n  \
         ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.3;\n  \
         location / {{ if ($fence_ok = 0) {{ return 403; }} proxy_pass http://worker; }} }}\n}}\n"
    )
}

/// Envoy's file, as JSON. Each listener takes both HTTP/1.1 and HTTP/2.
pub(super) fn envoy(site: &Site<'_>) -> Value {
    let header = |name: &str, value: &str| json!({ "header": { "name": name, "string_match": { "exact": value } } });
    let token = [
        header(crate::token::OWNER, site.token.owner_text()),
        header(crate::token::REVISION, &site.token.revision().to_string()),
    ];
    let fence = json!({
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": { "action": "ALLOW", "policies": { "fence": {
                "permissions": [{ "any": true }], "principals": [{ "and_ids": { "ids": token } }],
            } } },
        },
    });
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    });
    let hosts = json!([{ "name": "all", "domains": ["*"], "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "worker" } }] }]);
    let connections = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "fence", "codec_type": "AUTO", "route_config": { "virtual_hosts": hosts }, "http_filters": [fence, router],
    });
    let file = |path: &Path| json!({ "filename": path });
    let tls = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": { "tls_minimum_protocol_version": "TLSv1_3" },
                "tls_certificates": [{
                    "certificate_chain": file(&site.files.certificate), "private_key": file(&site.files.key),
                }],
            },
        },
    });
    let filters = json!([{ "name": "http", "typed_config": connections }]);
    let limits = json!({ "max_connections": CONNECTIONS_MAX, "max_pending_requests": CONNECTIONS_MAX, "max_requests": CONNECTIONS_MAX });
    let worker = json!([{ "lb_endpoints": [{ "endpoint": { "address": socket(site.worker) } }] }]);
    json!({ "static_resources": {
        "listeners": [
            { "name": "fence", "address": socket(site.http1), "filter_chains": [{ "filters": filters }] },
            {
                "name": "fence-by-tls", "address": socket(site.tls),
                "filter_chains": [{ "filters": filters, "transport_socket": tls }],
            },
        ],
        "clusters": [{
            "name": "worker", "connect_timeout": "5s", "type": "STATIC", "circuit_breakers": { "thresholds": [limits] },
            "load_assignment": { "cluster_name": "worker", "endpoints": worker },
        }],
    } })
}

fn socket(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}
