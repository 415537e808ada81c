import java.io.IOException;
import java.io.PrintWriter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.LagInfo;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TaskMetadata;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The count of the benchmarks in Kafka Streams: input topic, groupByKey, count in a persistent (RocksDB) store, output topic;
 * or another program, {@code --program NAME} (Programs.java).
 *
 * <p>Everything not given as an option is Kafka Streams' default: the record cache, RocksDB, the clients, and the commit
 * interval (100 ms under exactly-once, 30 s under at-least-once).
 *
 * <p>It prints one line {@code STATE old -> new} per state change. It closes at the end of standard input, or, with
 * {@code --stop-after N}, as soon as N records went through the topology and no further one for {@code --quiet-ms} (default 0;
 * records of repartition topics count, too, and how many they are is not known before). The latter matters under at-least-once: closing
 * commits at once, where waiting for the commit timer would charge up to 30 idle seconds to Kafka Streams.
 *
 * <p>{@code --set.KEY VALUE} sets any configuration. {@code --events FILE} is for the benches with several instances: the
 * file gets a line of JSON per change of state, tasks and restores (bench/events.py reads it), and closing leaves the group.
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
        final Events events = options.containsKey("events") ? new Events(options.get("events")) : null;
        final CloseOptions close = CloseOptions.timeout(CLOSE_TIMEOUT);
        if (events != null) {
            close.withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP);
            streams.setGlobalStateRestoreListener(events);
        }
        streams.setStateListener((newState, oldState) -> {
            System.out.println("STATE " + oldState + " -> " + newState);
            if (events != null) {
                events.state(newState);
            }
            if (newState == KafkaStreams.State.ERROR) {
                stop.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(close)));
        watch("end-of-input", CountBench::readToEnd, stop);
        final long quietMs = Long.parseLong(options.getOrDefault("quiet-ms", "0"));
        final long stopAfter = Long.parseLong(options.getOrDefault("stop-after", "0"));
        if (stopAfter > 0) {
            watch("processed", () -> waitUntilProcessed(streams, stopAfter, quietMs), stop);
        }
        if (events != null) {
            watch("tasks", () -> events.followTasks(streams), new CountDownLatch(1));
        }
        streams.start();
        stop.await();
        final boolean failed = streams.state() == KafkaStreams.State.ERROR;
        final boolean closed = streams.close(close);
        System.exit(failed || !closed ? 1 : 0);
    }

    private static StreamsBuilder topology(final Map<String, String> options) {
        final String program = options.getOrDefault("program", "count");
        if (!program.equals("count")) {
            return Programs.build(program, required(options, "input"), required(options, "output"));
        }
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
        options.forEach((name, value) -> {
            if (name.startsWith("set.")) {
                config.put(name.substring("set.".length()), value);
            }
        });
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

    private static void waitUntilProcessed(final KafkaStreams streams, final long records, final long quietMs)
        throws InterruptedException {
        List<Metric> totals = List.of();
        double before = 0;
        long changedAt = System.currentTimeMillis();
        while (before < records || System.currentTimeMillis() - changedAt < quietMs) {
            Thread.sleep(PROCESSED_POLL_MS);
            if (totals.isEmpty() && streams.state() == KafkaStreams.State.RUNNING) {
                totals = processTotals(streams);
            }
            final double now = processed(totals);
            if (now > before) {
                before = now;
                changedAt = System.currentTimeMillis();
            }
        }
        System.out.println("PROCESSED " + (long) before + " records");
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

    /** Writes what an instance does, with the wall-clock time in ms, as lines of JSON. All methods are thread-safe. */
    private static final class Events implements StateRestoreListener {
        private static final long TASKS_POLL_MS = 50;
        private static final int LAG_EVERY_POLLS = 20;
        private static final Set<String> JOINED = Set.of("PARTITIONS_ASSIGNED", "RUNNING");

        private final PrintWriter file;

        Events(final String path) throws IOException {
            file = new PrintWriter(path, "UTF-8");
        }

        void state(final KafkaStreams.State state) {
            write("state", "\"state\": \"" + state + "\"");
        }

        /** Asks for the tasks again and again; warm-ups are standbys to Kafka Streams, it does not tell them apart. */
        void followTasks(final KafkaStreams streams) throws InterruptedException {
            String before = "";
            boolean joined = false;
            for (int poll = 0; streams.state() != KafkaStreams.State.NOT_RUNNING; poll++) {
                Thread.sleep(TASKS_POLL_MS);
                if (!streams.state().isRunningOrRebalancing()) {
                    continue;
                }
                final Set<ThreadMetadata> threads = streams.metadataForLocalThreads();
                if (!joined && threads.stream().anyMatch(thread -> JOINED.contains(thread.threadState()))) {
                    joined = true;
                    write("joined", "\"first\": true");
                }
                final Set<TaskId> active = new TreeSet<>();
                final Set<TaskId> standby = new TreeSet<>();
                for (final ThreadMetadata thread : threads) {
                    active.addAll(ids(thread.activeTasks()));
                    standby.addAll(ids(thread.standbyTasks()));
                }
                final String tasks = "\"active\": " + list(active) + ", \"standby\": " + list(standby) + ", \"warmup\": []";
                if (!tasks.equals(before)) {
                    before = tasks;
                    write("tasks", tasks);
                }
                if (poll % LAG_EVERY_POLLS == 0) {
                    lag(streams, standby);
                }
            }
        }

        private void lag(final KafkaStreams streams, final Set<TaskId> copies) {
            final Set<Integer> partitions = copies.stream().map(TaskId::partition).collect(Collectors.toSet());
            long largest = 0;
            try {
                for (final Map<Integer, LagInfo> store : streams.allLocalStorePartitionLags().values()) {
                    for (final Map.Entry<Integer, LagInfo> entry : store.entrySet()) {
                        if (partitions.contains(entry.getKey())) {
                            largest = Math.max(largest, entry.getValue().offsetLag());
                        }
                    }
                }
            } catch (final RuntimeException notNow) {
                // The instance is on its way down, or the broker was slow: the next poll asks again.
                return;
            }
            write("lag", "\"records\": " + largest);
        }

        @Override
        public void onRestoreStart(final TopicPartition partition, final String store, final long start, final long end) {
            write("restore_start", "\"partition\": " + partition.partition());
        }

        @Override
        public void onBatchRestored(final TopicPartition partition, final String store, final long end, final long records) {
            // Start and end are enough.
        }

        @Override
        public void onRestoreEnd(final TopicPartition partition, final String store, final long records) {
            write("restore_end", "\"partition\": " + partition.partition() + ", \"records\": " + records);
        }

        private synchronized void write(final String event, final String fields) {
            file.println("{\"at_ms\": " + System.currentTimeMillis() + ", \"event\": \"" + event + "\", " + fields + "}");
            file.flush();
        }

        private static Set<TaskId> ids(final Collection<TaskMetadata> tasks) {
            return tasks.stream().map(TaskMetadata::taskId).collect(Collectors.toSet());
        }

        private static String list(final Set<TaskId> tasks) {
            return tasks.stream().map(task -> "\"" + task + "\"").collect(Collectors.joining(", ", "[", "]"));
        }
    }
}
