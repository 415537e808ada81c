import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The count of the benchmarks in Kafka Streams: input topic, groupByKey, count in a persistent (RocksDB) store, output topic.
 *
 * <p>Everything not given as an option is Kafka Streams' default: the record cache, RocksDB, the clients, and the commit
 * interval (100 ms under exactly-once, 30 s under at-least-once).
 *
 * <p>It prints one line {@code STATE old -> new} per state change. It closes at the end of standard input, or, with
 * {@code --stop-after N}, as soon as N records went through the topology. The latter matters under at-least-once: closing
 * commits at once, where waiting for the commit timer would charge up to 30 idle seconds to Kafka Streams.
 */
public final class CountBench {
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(60);
    private static final long PROCESSED_POLL_MS = 20;

    private CountBench() {
    }

    public static void main(final String[] args) throws Exception {
        final Map<String, String> options = parse(args);
        final KafkaStreams streams = new KafkaStreams(topology(options).build(), config(options));
        final CountDownLatch stop = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(exception -> {
            exception.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((newState, oldState) -> {
            System.out.println("STATE " + oldState + " -> " + newState);
            if (newState == KafkaStreams.State.ERROR) {
                stop.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(CLOSE_TIMEOUT)));
        watch("end-of-input", CountBench::readToEnd, stop);
        final long stopAfter = Long.parseLong(options.getOrDefault("stop-after", "0"));
        if (stopAfter > 0) {
            watch("processed", () -> waitUntilProcessed(streams, stopAfter), stop);
        }
        streams.start();
        stop.await();
        final boolean failed = streams.state() == KafkaStreams.State.ERROR;
        final boolean closed = streams.close(CLOSE_TIMEOUT);
        System.exit(failed || !closed ? 1 : 0);
    }

    private static StreamsBuilder topology(final Map<String, String> options) {
        final StreamsBuilder builder = new StreamsBuilder();
        builder.stream(required(options, "input"), Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey()
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(required(options, "output"), Produced.with(Serdes.String(), Serdes.Long()));
        return builder;
    }

    private static Properties config(final Map<String, String> options) {
        final Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, required(options, "bootstrap-servers"));
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, required(options, "application-id"));
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, required(options, "guarantee"));
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, required(options, "threads"));
        config.put(StreamsConfig.STATE_DIR_CONFIG, required(options, "state-dir"));
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        if (options.containsKey("commit-interval-ms")) {
            config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, options.get("commit-interval-ms"));
        }
        return config;
    }

    private interface Wait {
        void untilDone() throws IOException, InterruptedException;
    }

    private static void watch(final String name, final Wait wait, final CountDownLatch stop) {
        final Thread thread = new Thread(() -> {
            try {
                wait.untilDone();
            } catch (final IOException | InterruptedException exception) {
                exception.printStackTrace();
            }
            stop.countDown();
        }, name);
        thread.setDaemon(true);
        thread.start();
    }

    private static void readToEnd() throws IOException {
        while (System.in.read() >= 0) {
            // The harness writes nothing: only the end of the stream counts.
        }
    }

    private static void waitUntilProcessed(final KafkaStreams streams, final long records) throws InterruptedException {
        List<Metric> totals = List.of();
        while (processed(totals) < records) {
            Thread.sleep(PROCESSED_POLL_MS);
            if (totals.isEmpty() && streams.state() == KafkaStreams.State.RUNNING) {
                totals = processTotals(streams);
            }
        }
        System.out.println("PROCESSED " + records + " records");
    }

    private static double processed(final List<Metric> totals) {
        return totals.stream().mapToDouble(metric -> (Double) metric.metricValue()).sum();
    }

    private static List<Metric> processTotals(final KafkaStreams streams) {
        final List<Metric> totals = new ArrayList<>();
        for (final Map.Entry<MetricName, ? extends Metric> entry : streams.metrics().entrySet()) {
            final MetricName name = entry.getKey();
            if (name.group().equals("stream-thread-metrics") && name.name().equals("process-total")) {
                totals.add(entry.getValue());
            }
        }
        return totals;
    }

    private static Map<String, String> parse(final String[] args) {
        final Map<String, String> options = new HashMap<>();
        for (int i = 0; i < args.length; i += 2) {
            if (!args[i].startsWith("--") || i + 1 == args.length) {
                throw new IllegalArgumentException("Expected --option value pairs, got: " + String.join(" ", args));
            }
            options.put(args[i].substring(2), args[i + 1]);
        }
        return options;
    }

    private static String required(final Map<String, String> options, final String name) {
        final String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException("The option --" + name + " is missing");
        }
        return value;
    }
}
