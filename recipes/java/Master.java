import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.lock.LockResponse;
import io.etcd.jetcd.support.CloseableClient;
import io.grpc.stub.StreamObserver;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicBoolean;

/** A master that does the jobs in the file $JOBS, one of each line, at $WORKER, under a lock of jetcd (io.etcd:jetcd-core:0.8.5). */
public final class Master {
    private static final long TTL_SECONDS = 10;

    public static void main(String[] arguments) throws Exception {
        var done = false;
        try (var client = Client.builder().endpoints(System.getenv("ETCD").split(",")).build()) {
            long lease = client.getLeaseClient().grant(TTL_SECONDS).get().getID();
            var lost = new AtomicBoolean();
            try (CloseableClient keeping = client.getLeaseClient().keepAlive(lease, whenLost(lost))) {
                var name = ByteSequence.from(System.getenv("LOCK"), StandardCharsets.UTF_8);
                LockResponse held = client.getLockClient().lock(name, lease).get();
                // The owner is this session's own key below $LOCK. The header's revision is one at which that key was the oldest
                // there: its create revision, or a later one if the lock had to be waited for.
                var owner = held.getKey().toString(StandardCharsets.UTF_8);
                done = work(owner, held.getHeader().getRevision(), lost);
            } finally {
                client.getLeaseClient().revoke(lease).get();
            }
        }
        System.exit(done ? 0 : 1);
    }

    /** Does the jobs, and begins none when the lease is lost; says whether it got to their end. */
    private static boolean work(String owner, long revision, AtomicBoolean lost) throws Exception {
        var http = HttpClient.newHttpClient();
        try (var jobs = Files.newBufferedReader(Path.of(System.getenv("JOBS")))) {
            for (String job; (job = jobs.readLine()) != null; ) {
                if (lost.get()) {
                    return false;
                }
                var request = HttpRequest.newBuilder(URI.create(System.getenv("WORKER")))
                        .header("Fence-Owner", owner)
                        .header("Fence-Revision", Long.toString(revision))
                        .POST(HttpRequest.BodyPublishers.ofString(job))
                        .build();
                var answer = http.send(request, HttpResponse.BodyHandlers.discarding());
                var reason = answer.headers().firstValue("Fence-Reason").orElse("");
                System.out.printf("%s, revision %d, %s: %d %s%n", owner, revision, job, answer.statusCode(), reason);
                if (answer.statusCode() >= 300) {
                    return false;
                }
            }
        }
        return true;
    }

    private static StreamObserver<LeaseKeepAliveResponse> whenLost(AtomicBoolean lost) {
        return new StreamObserver<>() {
            @Override
            public void onNext(LeaseKeepAliveResponse renewed) {}

            @Override
            public void onError(Throwable error) {
                lost.set(true);
            }

            @Override
            public void onCompleted() {
                lost.set(true);
            }
        };
    }
}
