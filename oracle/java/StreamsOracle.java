import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyConfig;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.errors.LogAndContinueExceptionHandler;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.CogroupedKStream;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.KeyValueMapper;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Predicate;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.ValueMapper;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.DslKeyValueParams;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Runs drawn programs (oracle/programs.py says what they are) in Kafka Streams' TopologyTestDriver. A line of JSON in:
 * {"nodes": [...], "inputs": [...], "outputs": [...], "scripts": [[[topic, key, value, time, [[name, value], ...]], ...], ...], "as_of": [[time, ...], ...]}; a line out: for
 * each script {"outputs": {topic: [[key, value, time, headers], ...]}, "stores": {name: [[key, value, time], ...]}}, or {"error": text}.
 */
public final class StreamsOracle {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(final String[] arguments) throws Exception {
        final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(JSON.readTree(line), arguments[0]));
        }
    }

    private static String answer(final JsonNode program, final String folder) throws Exception {
        final ObjectNode answer = JSON.createObjectNode();
        try {
            final ArrayNode runs = answer.putArray("runs");
            final Properties settings = settings(folder);
            for (int at = 0; at < program.get("scripts").size(); at++) {
                runs.add(new Program(program, settings).run(program.get("scripts").get(at), program.get("as_of").get(at), settings));
            }
        } catch (final Exception | StackOverflowError error) {
            answer.put("error", error + (error.getCause() == null ? "" : ": " + error.getCause()));
        }
        return JSON.writeValueAsString(answer);
    }

    /** Key-value stores in memory, which open at once; the others as applications have them. */
    public static final class Suppliers extends BuiltInDslStoreSuppliers.RocksDBDslStoreSuppliers {
        @Override
        public KeyValueBytesStoreSupplier keyValueStore(final DslKeyValueParams params) {
            return Stores.inMemoryKeyValueStore(params.name());
        }
    }

    /** Texts; one that begins with 0xfe is refused. */
    public static final class CheckedText extends Serdes.WrapperSerde<String> {
        public CheckedText() {
            super(new StringSerializer(), (topic, data) -> {
                if (data != null && data.length > 0 && data[0] == (byte) 0xfe) {
                    throw new SerializationException("it begins with 0xfe");
                }
                return data == null ? null : new String(data, StandardCharsets.UTF_8);
            });
        }
    }

    /** Pipes a record of a negative time, which a TestRecord refuses. */
    private static void pipeTimeless(final TopologyTestDriver driver, final String topic, final long time, final byte[] key, final byte[] value, final Headers headers) {
        try {
            final Method pipe = TopologyTestDriver.class.getDeclaredMethod("pipeRecord", String.class, long.class, byte[].class, byte[].class, Headers.class);
            pipe.setAccessible(true);
            pipe.invoke(driver, topic, time, key, value, headers);
        } catch (final ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static Properties settings(final String folder) {
        final Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "oracle");
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, CheckedText.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, CheckedText.class);
        settings.put("deserialization.exception.handler", LogAndContinueExceptionHandler.class);
        settings.put(StreamsConfig.DEFAULT_TIMESTAMP_EXTRACTOR_CLASS_CONFIG, LogAndSkipOnInvalidTimestamp.class);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG, Suppliers.class);
        // Unmatched records of a join are looked at with each record, not once a second.
        settings.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
        settings.put("__emit.interval.ms.kstreams.windowed.aggregation__", 0L);
        return settings;
    }

    private static final class Program {
        private final StreamsBuilder builder;
        private final Map<String, KStream<String, String>> streams = new HashMap<>();
        private final Map<String, KTable<String, String>> tables = new HashMap<>();
        private final Map<String, GlobalKTable<String, String>> globalTables = new HashMap<>();
        private final JsonNode program;

        Program(final JsonNode program, final Properties settings) {
            this.program = program;
            builder = new StreamsBuilder(new TopologyConfig(new StreamsConfig(settings)));
            program.get("nodes").forEach(this::add);
        }

        private ObjectNode run(final JsonNode script, final JsonNode asOf, final Properties settings) {
            final ObjectNode told = JSON.createObjectNode();
            try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings, Instant.ofEpochMilli(0))) {
                final Map<String, TestInputTopic<byte[], byte[]>> inputs = new HashMap<>();
                for (final JsonNode topic : program.get("inputs")) {
                    inputs.put(topic.asText(), driver.createInputTopic(topic.asText(), new ByteArraySerializer(), new ByteArraySerializer()));
                }
                for (final JsonNode record : script) {
                    if (record.get(0).isNull()) {
                        driver.advanceWallClockTime(Duration.ofMillis(record.get(3).asLong()));
                        continue;
                    }
                    final Headers headers = new RecordHeaders();
                    record.get(4).forEach(one -> headers.add(one.get(0).asText(), one.get(1).isNull() ? null : one.get(1).asText().getBytes(StandardCharsets.ISO_8859_1)));
                    if (record.get(3).asLong() < 0) {
                        pipeTimeless(driver, record.get(0).asText(), record.get(3).asLong(), bytes(text(record.get(1))), bytes(text(record.get(2))), headers);
                        continue;
                    }
                    inputs.get(record.get(0).asText()).pipeInput(new TestRecord<>(bytes(text(record.get(1))), bytes(text(record.get(2))), headers, record.get(3).asLong()));
                }
                final ObjectNode outputs = told.putObject("outputs");
                for (final JsonNode topic : program.get("outputs")) {
                    final TestOutputTopic<String, String> output =
                        driver.createOutputTopic(topic.asText(), new StringDeserializer(), new StringDeserializer());
                    final ArrayNode records = outputs.putArray(topic.asText());
                    for (final TestRecord<String, String> record : output.readRecordsToList()) {
                        final ArrayNode headers = records.addArray().add(record.key()).add(record.value()).add(record.timestamp()).addArray();
                        for (final Header one : record.headers()) {
                            headers.addArray().add(one.key()).add(one.value() == null ? null : new String(one.value(), StandardCharsets.ISO_8859_1));
                        }
                    }
                }
                final ObjectNode stores = told.putObject("stores");
                for (final JsonNode node : program.get("nodes")) {
                    final JsonNode windows = node.get("windows");
                    if (windows != null && windows.has("results") && !windows.get("results").asText().equals("final")) {
                        final String name = node.get("store").asText();
                        stores.set(name, windows.has("gap") ? sessions(driver.getSessionStore(name)) : windows(driver.getTimestampedWindowStore(name)));
                    }
                }
                for (final JsonNode node : program.get("nodes")) {
                    if (node.has("does") && node.has("store")) {
                        processors(driver, node, stores);
                    }
                }
                for (final JsonNode name : program.get("stores")) {
                    final ArrayNode entries = stores.putArray(name.asText());
                    final KeyValueStore<String, ValueAndTimestamp<Object>> store = driver.getTimestampedKeyValueStore(name.asText());
                    try (KeyValueIterator<String, ValueAndTimestamp<Object>> all = store.all()) {
                        while (all.hasNext()) {
                            final KeyValue<String, ValueAndTimestamp<Object>> entry = all.next();
                            entries.addArray().add(entry.key).add(String.valueOf(entry.value.value())).add(entry.value.timestamp());
                        }
                    }
                }
                for (final JsonNode name : program.get("versioned")) {
                    final ArrayNode entries = stores.putArray(name.asText());
                    final VersionedKeyValueStore<String, String> store = driver.getVersionedKeyValueStore(name.asText());
                    for (final String key : "a b c p q r t x y z & _ -".split(" ")) {
                        for (final JsonNode time : asOf) {
                            final VersionedRecord<String> found = store.get(key, time.asLong());
                            if (found != null) {
                                entries.addArray().add(key).add(time.asLong()).add(found.value()).add(found.timestamp());
                            }
                        }
                    }
                }
            }
            return told;
        }

        /** What a processor's store has; others are among "stores" and "versioned". */
        private static void processors(final TopologyTestDriver driver, final JsonNode node, final ObjectNode stores) {
            final String name = node.get("store").asText();
            final ArrayNode entries = JSON.createArrayNode();
            switch (node.get("does").asText()) {
                case "running" -> {
                    try (KeyValueIterator<String, String> all = driver.<String, String>getKeyValueStore(name).all()) {
                        all.forEachRemaining(entry -> entries.addArray().add(entry.key).add(entry.value));
                    }
                    stores.set(name, entries);
                }
                case "windows" -> {
                    try (KeyValueIterator<Windowed<String>, String> all = driver.<String, String>getWindowStore(name).all()) {
                        all.forEachRemaining(entry -> entries.addArray().add(entry.key.key()).add(entry.key.window().start()).add(entry.value));
                    }
                    stores.set(name, entries);
                }
                case "sessions" -> stores.set(name, sessions(driver.getSessionStore(name)));
                default -> { }
            }
        }

        private static ArrayNode windows(final WindowStore<String, ValueAndTimestamp<Object>> store) {
            final Map<String, ArrayNode> found = new TreeMap<>();
            try (KeyValueIterator<Windowed<String>, ValueAndTimestamp<Object>> all = store.all()) {
                all.forEachRemaining(entry -> {
                    final String key = entry.key.key() + "@" + entry.key.window().start();
                    found.put(key, JSON.createArrayNode().add(key).add(String.valueOf(entry.value.value())).add(entry.value.timestamp()));
                });
            }
            return JSON.createArrayNode().addAll(found.values());
        }

        private static ArrayNode sessions(final SessionStore<String, Object> store) {
            final Map<String, ArrayNode> found = new TreeMap<>();
            try (KeyValueIterator<Windowed<String>, Object> all = store.fetch(null, null)) {
                all.forEachRemaining(entry -> {
                    final String key = entry.key.key() + "@" + entry.key.window().start() + "-" + entry.key.window().end();
                    found.put(key, JSON.createArrayNode().add(key).add(String.valueOf(entry.value)).add(entry.key.window().end()));
                });
            }
            return JSON.createArrayNode().addAll(found.values());
        }

        private void process(final String id, final JsonNode node) {
            if (node.has("store")) {
                builder.addStateStore(OracleProcessors.store(node));
            }
            streams.put(id, OracleProcessors.processed(stream(node, "in"), node));
        }

        private static String text(final JsonNode node) {
            return node.isNull() ? null : node.asText();
        }

        private static byte[] bytes(final String text) {
            // Stand for a value that is refused, and for bytes that are no UTF-8.
            if (text != null && (text.equals("\0bad") || text.equals("\0odd"))) {
                return new byte[] {(byte) (text.equals("\0bad") ? 0xfe : 0xff)};
            }
            return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
        }

        private static String last(final String text) {
            return text.length() > 12 ? text.substring(text.length() - 12) : text;
        }

        private void add(final JsonNode node) {
            final String id = node.get("id").asText();
            switch (node.get("op").asText()) {
                case "stream" -> streams.put(id, builder.stream(node.get("topic").asText()));
                case "table" -> tables.put(id, builder.table(node.get("topic").asText(), kept(node)));
                case "global_table" -> globalTables.put(id, builder.globalTable(node.get("topic").asText(), kept(node)));
                case "global_join" -> streams.put(id, globalJoin(node));
                case "filter" -> filter(id, node);
                case "map_values" -> mapValues(id, node);
                case "transform_values" -> tables.put(id, transformValues(node));
                case "flat_map_values" -> streams.put(id, stream(node, "in").flatMapValues(v -> v == null ? List.of() : List.of(v.isEmpty() ? new String[0] : v.split(""))));
                case "split" -> stream(node, "in").split(Named.as(id))
                    .branch((k, v) -> v != null && v.length() < 2, Branched.withConsumer(few -> streams.put(id + "-few", few), "-few"))
                    .branch((k, v) -> v != null && v.length() > 1, Branched.withConsumer(many -> streams.put(id + "-many", many), "-many"));
                case "branch" -> streams.put(id, streams.get(node.get("in").asText() + "-" + node.get("which").asText()));
                case "repartition" -> streams.put(id, stream(node, "in").repartition(Repartitioned.as(id)));
                case "select_key" -> streams.put(id, stream(node, "in").selectKey((k, v) -> v == null || v.isEmpty() ? "z" : v.substring(v.length() - 1)));
                case "merge" -> streams.put(id, stream(node, "left").merge(stream(node, "right")));
                case "to_table" -> tables.put(id, stream(node, "in").toTable(kept(node)));
                case "to_stream" -> streams.put(id, table(node, "in").toStream());
                case "nested" -> streams.put(id, nested(id, node));
                case "maps" -> tables.put(id, stream(node, "in").groupByKey(Grouped.<String, String>as(id))
                    .aggregate(() -> "", (k, v, a) -> counted(a, Math.min(v.length(), 20), node.get("keys").asText()), Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(node.get("map").asText()))
                    .mapValues(v -> v, kept(node)));
                case "count", "reduce", "aggregate" -> aggregate(id, node);
                case "group_count", "group_reduce", "group_aggregate" -> tables.put(id, groupedTable(id, node));
                case "cogroup" -> cogroup(id, node);
                case "process" -> process(id, node);
                case "child" -> streams.put(id, stream(node, "in").mapValues(v -> v, Named.as(node.get("in").asText() + "-" + node.get("which").asText())));
                case "foreign" -> tables.put(id, foreign(node));
                case "suppress" -> streams.put(id, table(node, "in").suppress(Suppressed.untilTimeLimit(ms(node, "wait"), buffer(node.get("most")))).toStream());
                case "join" -> join(id, node);
                case "sink" -> stream(node, "in").to(node.get("topic").asText());
                default -> throw new IllegalArgumentException(node.toString());
            }
        }

        private KStream<String, String> stream(final JsonNode node, final String side) {
            return streams.get(node.get(side).asText());
        }

        private KTable<String, String> table(final JsonNode node, final String side) {
            return tables.get(node.get(side).asText());
        }

        private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept(final JsonNode node) {
            final String store = node.get("store").asText();
            if (!node.has("history")) {
                return Materialized.as(store);
            }
            final Duration history = ms(node, "history");
            return Materialized.as(node.has("as_it_is") ? Stores.persistentVersionedKeyValueStore(store, history) : new OracleVersions(store, history));
        }

        private void filter(final String id, final JsonNode node) {
            final String without = node.get("without").asText();
            if (tables.containsKey(node.get("in").asText())) {
                final Predicate<String, String> keeps = (k, v) -> !v.contains(without);
                tables.put(id, node.has("store") ? table(node, "in").filter(keeps, kept(node)) : table(node, "in").filter(keeps));
            } else {
                streams.put(id, stream(node, "in").filter((k, v) -> v != null && !v.contains(without)));
            }
        }

        private void mapValues(final String id, final JsonNode node) {
            final String suffix = node.get("suffix").asText();
            if (tables.containsKey(node.get("in").asText())) {
                final ValueMapper<String, String> mapper = v -> v + suffix;
                tables.put(id, node.has("store") ? table(node, "in").mapValues(mapper, kept(node)) : table(node, "in").mapValues(mapper));
            } else {
                streams.put(id, stream(node, "in").mapValues(v -> v == null ? null : v + suffix));
            }
        }

        private KTable<String, String> transformValues(final JsonNode node) {
            final KTable<String, String> given = table(node, "in");
            if (node.get("does").asText().equals("named")) {
                return node.has("store")
                    ? given.transformValues(OracleProcessors.NamedByKey::new, kept(node))
                    : given.transformValues(OracleProcessors.NamedByKey::new);
            }
            final String calls = node.get("calls").asText();
            builder.addStateStore(OracleProcessors.keyValue(calls));
            return given.transformValues(() -> new OracleProcessors.Numbered(calls), kept(node), calls);
        }

        private void cogroup(final String id, final JsonNode node) {
            final CogroupedKStream<String, String> both = stream(node, "left").groupByKey(Grouped.<String, String>as(id + "-left"))
                .<String>cogroup((k, v, a) -> last(a + "+" + v))
                .cogroup(stream(node, "right").groupByKey(Grouped.<String, String>as(id + "-right")), (k, v, a) -> last(a + "*" + v));
            final JsonNode w = node.get("windows");
            if (w == null) {
                tables.put(id, both.aggregate(() -> "", kept(node)));
                return;
            }
            final String store = node.get("store").asText();
            if (w.has("gap")) {
                show(id, w, both.windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(w, "gap"), ms(w, "grace")))
                    .aggregate(() -> "", (k, a, b) -> last(a + b), Materialized.<String, String, SessionStore<Bytes, byte[]>>as(store).withKeySerde(Serdes.String()).withValueSerde(Serdes.String())));
                return;
            }
            final Materialized<String, String, WindowStore<Bytes, byte[]>> kept =
                Materialized.<String, String, WindowStore<Bytes, byte[]>>as(store).withRetention(retention(w)).withKeySerde(Serdes.String()).withValueSerde(Serdes.String());
            show(id, w, w.has("difference")
                ? both.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(w, "difference"), ms(w, "grace"))).aggregate(() -> "", kept)
                : both.windowedBy(TimeWindows.ofSizeAndGrace(ms(w, "size"), ms(w, "grace")).advanceBy(ms(w, "advance"))).aggregate(() -> "", kept));
        }

        private void aggregate(final String id, final JsonNode node) {
            final KGroupedStream<String, String> grouped = stream(node, "in").groupByKey(Grouped.as(id));
            final JsonNode windows = node.get("windows");
            if (windows == null) {
                tables.put(id, plain(grouped, node));
                return;
            }
            show(id, windows, windows.has("gap") ? sessions(grouped, node, windows) : timed(grouped, node, windows));
        }

        private void show(final String id, final JsonNode windows, final KTable<Windowed<String>, String> found) {
            final boolean suppressed = windows.get("results").asText().equals("suppressed");
            final KTable<Windowed<String>, String> shown = suppressed ? found.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())) : found;
            streams.put(id, shown.toStream((k, v) -> k.key() + "@" + k.window().start() + "-" + k.window().end()));
        }

        private static KTable<String, String> plain(final KGroupedStream<String, String> grouped, final JsonNode node) {
            final String store = node.get("store").asText();
            return switch (node.get("op").asText()) {
                case "count" -> grouped.count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(store)).mapValues(n -> String.valueOf(n), Materialized.as(store + "-text"));
                case "reduce" -> grouped.reduce((a, v) -> last(a + v), Materialized.as(store));
                default -> grouped.aggregate(() -> "", (k, v, a) -> last(a + v), Materialized.as(store));
            };
        }

        private static KTable<Windowed<String>, String> timed(final KGroupedStream<String, String> grouped, final JsonNode node, final JsonNode w) {
            final String store = node.get("store").asText();
            final boolean slides = w.has("difference");
            final var windowed = (slides
                ? grouped.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(w, "difference"), ms(w, "grace")))
                : grouped.windowedBy(TimeWindows.ofSizeAndGrace(ms(w, "size"), ms(w, "grace")).advanceBy(ms(w, "advance")))).emitStrategy(results(w));
            final Duration retention = retention(w);
            return switch (node.get("op").asText()) {
                case "count" -> windowed.count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(store).withRetention(retention).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long())).mapValues(n -> String.valueOf(n));
                case "reduce" -> windowed.reduce((a, v) -> last(a + v), Materialized.<String, String, WindowStore<Bytes, byte[]>>as(store).withRetention(retention).withKeySerde(Serdes.String()).withValueSerde(Serdes.String()));
                default -> windowed.aggregate(() -> "", (k, v, a) -> last(a + v), Materialized.<String, String, WindowStore<Bytes, byte[]>>as(store).withRetention(retention).withKeySerde(Serdes.String()).withValueSerde(Serdes.String()));
            };
        }

        private static Duration retention(final JsonNode w) {
            // A window that closes when its store's retention has passed is lost in the original (docs/differences.md).
            final boolean isFinal = w.get("results").asText().equals("final");
            final Duration least = w.has("difference") ? ms(w, "difference").multipliedBy(2) : ms(w, "size");
            return isFinal ? Duration.ofDays(1) : least.plus(ms(w, "grace"));
        }

        private static KTable<Windowed<String>, String> sessions(final KGroupedStream<String, String> grouped, final JsonNode node, final JsonNode w) {
            final String store = node.get("store").asText();
            final var windowed = grouped.windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(w, "gap"), ms(w, "grace"))).emitStrategy(results(w));
            return switch (node.get("op").asText()) {
                case "count" -> windowed.count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as(store).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long())).mapValues(n -> n == null ? null : String.valueOf(n));
                case "reduce" -> windowed.reduce((a, v) -> last(a + v), Materialized.<String, String, SessionStore<Bytes, byte[]>>as(store).withKeySerde(Serdes.String()).withValueSerde(Serdes.String()));
                default -> windowed.aggregate(() -> "", (k, v, a) -> last(a + v), (k, a, b) -> last(a + b), Materialized.<String, String, SessionStore<Bytes, byte[]>>as(store).withKeySerde(Serdes.String()).withValueSerde(Serdes.String()));
            };
        }

        private KStream<String, String> globalJoin(final JsonNode node) {
            final ValueJoiner<String, String, String> joiner = (l, r) -> l + "&" + (r == null ? "_" : r);
            // An empty text has no key.
            final KeyValueMapper<String, String, String> letter =
                (k, v) -> v == null || v.isEmpty() ? null : translated(v.charAt(v.length() - 1));
            final KStream<String, String> left = stream(node, "left");
            final GlobalKTable<String, String> right = globalTables.get(node.get("right").asText());
            return node.get("kind").asText().equals("left")
                ? left.leftJoin(right, letter, joiner)
                : left.join(right, letter, joiner);
        }

        private KTable<String, String> foreign(final JsonNode node) {
            final ValueJoiner<String, String, String> joiner = (l, r) -> l + "&" + (r == null ? "_" : r);
            final KTable<String, String> left = table(node, "left");
            final KTable<String, String> given = table(node, "right");
            final KTable<String, String> right = !node.has("nested") ? given : given.toStream((k, v) -> k)
                .toTable(Named.as(node.get("id").asText() + "-right"), Materialized.as(node.get("rekeyed").asText()));
            final Function<String, String> letter = v -> v.isEmpty() ? "c" : translated(v.charAt(v.length() - 1));
            if (!node.has("store")) {
                return node.get("kind").asText().equals("left")
                    ? left.leftJoin(right, letter, joiner)
                    : left.join(right, letter, joiner);
            }
            return node.get("kind").asText().equals("left")
                ? left.leftJoin(right, letter, joiner, kept(node))
                : left.join(right, letter, joiner, kept(node));
        }

        /** A text in the place of each nested key: they are equal where the texts are. */
        private KStream<String, String> nested(final String id, final JsonNode node) {
            final KeyValueMapper<String, String, String> letter = (k, v) -> v.isEmpty() ? "z" : v.substring(v.length() - 1);
            final Materialized<String, Long, KeyValueStore<Bytes, byte[]>> kept = Materialized.as(node.get("store").asText());
            final KTable<String, Long> counted = node.has("records")
                ? stream(node, "in").filter((k, v) -> v != null).groupBy(letter, Grouped.as(id)).count(kept)
                : table(node, "in").groupBy((k, v) -> KeyValue.pair(letter.apply(k, v), v), Grouped.as(id)).count(kept);
            return counted.toStream((k, v) -> k).mapValues(n -> n == null ? null : String.valueOf(n));
        }

        /** How often each number came, one more now; of "boolean" each parity. */
        private static String counted(final String before, final int number, final String keys) {
            final TreeMap<Integer, Integer> counts = new TreeMap<>();
            for (final String one : before.isEmpty() ? new String[0] : before.split(",")) {
                final String[] parts = one.split("=");
                counts.put(Integer.parseInt(parts[0]), Integer.parseInt(parts[1]));
            }
            counts.merge(keys.equals("boolean") ? number % 2 : number, 1, Integer::sum);
            return counts.entrySet().stream().map(one -> one.getKey() + "=" + one.getValue()).collect(Collectors.joining(","));
        }

        private static String translated(final char letter) {
            final int place = "xyzpqrt&_".indexOf(letter);
            return String.valueOf(place < 0 ? letter : "abcabcabc".charAt(place));
        }

        private static Suppressed.BufferConfig<?> buffer(final JsonNode most) {
            return most.isNull() ? Suppressed.BufferConfig.unbounded() : Suppressed.BufferConfig.maxRecords(most.asLong()).emitEarlyWhenFull();
        }

        private static EmitStrategy results(final JsonNode windows) {
            return windows.get("results").asText().equals("final") ? EmitStrategy.onWindowClose() : EmitStrategy.onWindowUpdate();
        }

        private KTable<String, String> groupedTable(final String id, final JsonNode node) {
            final String store = node.get("store").asText();
            final KGroupedTable<String, String> grouped = table(node, "in").groupBy(
                (k, v) -> KeyValue.pair(v.isEmpty() ? "z" : v.substring(v.length() - 1), v), Grouped.as(id));
            return switch (node.get("op").asText()) {
                case "group_count" -> grouped.count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(store)).mapValues(n -> String.valueOf(n), Materialized.as(store + "-text"));
                case "group_reduce" -> grouped.reduce((a, v) -> last(a + "+" + v), (a, v) -> last(a + "-" + v), Materialized.as(store));
                default -> grouped.aggregate(() -> "", (k, v, a) -> last(a + "+" + v), (k, v, a) -> last(a + "-" + v), Materialized.as(store));
            };
        }

        private static Duration ms(final JsonNode node, final String name) {
            return Duration.ofMillis(node.get(name).asLong());
        }

        private void join(final String id, final JsonNode node) {
            final ValueJoiner<String, String, String> joiner = (l, r) -> (l == null ? "_" : l) + "&" + (r == null ? "_" : r);
            final String kind = node.get("kind").asText();
            final boolean leftIsTable = tables.containsKey(node.get("left").asText());
            if (leftIsTable) {
                final KTable<String, String> left = table(node, "left");
                final KTable<String, String> right = table(node, "right");
                if (!node.has("store")) {
                    tables.put(id, switch (kind) {
                        case "inner" -> left.join(right, joiner);
                        case "left" -> left.leftJoin(right, joiner);
                        default -> left.outerJoin(right, joiner);
                    });
                    return;
                }
                tables.put(id, switch (kind) {
                    case "inner" -> left.join(right, joiner, kept(node));
                    case "left" -> left.leftJoin(right, joiner, kept(node));
                    default -> left.outerJoin(right, joiner, kept(node));
                });
            } else if (tables.containsKey(node.get("right").asText())) {
                final KStream<String, String> left = stream(node, "left");
                final KTable<String, String> right = table(node, "right");
                final Joined<String, String, String> plain = Joined.as(id);
                final Joined<String, String, String> named = node.has("grace") ? plain.withGracePeriod(ms(node, "grace")) : plain;
                streams.put(id, kind.equals("inner") ? left.join(right, joiner, named) : left.leftJoin(right, joiner, named));
            } else {
                final JsonNode w = node.get("windows");
                final JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(Duration.ofDays(1), ms(w, "grace")).before(ms(w, "before")).after(ms(w, "after"));
                final StreamJoined<String, String, String> named = StreamJoined.<String, String, String>as(id).withStoreName(node.get("store").asText());
                final KStream<String, String> left = stream(node, "left");
                final KStream<String, String> right = stream(node, "right");
                streams.put(id, switch (kind) {
                    case "inner" -> left.join(right, joiner, windows, named);
                    case "left" -> left.leftJoin(right, joiner, windows, named);
                    default -> left.outerJoin(right, joiner, windows, named);
                });
            }
        }
    }
}
