import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.ValueTransformerWithKey;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/** The processors of oracle/processors.py, by name. */
final class OracleProcessors {
    private static final Duration EVERY = Duration.ofMillis(20);
    private static final Duration RETENTION = Duration.ofMillis(50);
    private static final Duration HISTORY = Duration.ofMillis(20);
    private static final long REACH = 30;
    private static final long GAP = 10;

    private OracleProcessors() {
    }

    static StoreBuilder<KeyValueStore<String, String>> keyValue(final String name) {
        return Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(name), Serdes.String(), Serdes.String());
    }

    static StoreBuilder<?> store(final JsonNode node) {
        final String name = node.get("store").asText();
        return switch (node.get("does").asText()) {
            case "running" -> keyValue(name);
            case "timed" -> Stores.timestampedKeyValueStoreBuilder(Stores.persistentTimestampedKeyValueStore(name), Serdes.String(), Serdes.String());
            case "windows" -> Stores.windowStoreBuilder(Stores.persistentWindowStore(name, RETENTION, Duration.ofMillis(1), false), Serdes.String(), Serdes.String());
            case "sessions" -> Stores.sessionStoreBuilder(Stores.persistentSessionStore(name, RETENTION), Serdes.String(), Serdes.String());
            default -> Stores.versionedKeyValueStoreBuilder(new OracleVersions(name, HISTORY), Serdes.String(), Serdes.String());
        };
    }

    static KStream<String, String> processed(final KStream<String, String> stream, final JsonNode node) {
        final String id = node.get("id").asText();
        final String does = node.get("does").asText();
        if (does.equals("split")) {
            return stream.process(() -> new Split(id), Named.as(id));
        }
        final String store = node.get("store").asText();
        if (node.get("values").asBoolean()) {
            return stream.processValues(() -> new RunningValues(store), Named.as(id), store);
        }
        final String clock = node.hasNonNull("clock") ? node.get("clock").asText() : "";
        return switch (does) {
            case "running" -> stream.process(() -> new Running(store, clock), Named.as(id), store);
            case "timed" -> stream.process(() -> new Timed(store), Named.as(id), store);
            case "windows" -> stream.process(() -> new InWindows(store), Named.as(id), store);
            case "sessions" -> stream.process(() -> new InSessions(store), Named.as(id), store);
            default -> stream.process(() -> new Versioned(store), Named.as(id), store);
        };
    }

    private static String shown(final String text) {
        return text == null ? "-" : text;
    }

    private static String last(final String text) {
        return text.length() > 12 ? text.substring(text.length() - 12) : text;
    }

    private static String told(final VersionedRecord<String> found) {
        return found == null ? "-" : found.value() + "@" + found.timestamp();
    }

    private static Headers seen(final Headers headers, final String old) {
        return new RecordHeaders(headers).add("seen", old == null ? null : old.getBytes(StandardCharsets.UTF_8));
    }

    private static List<KeyValue<String, String>> all(final KeyValueStore<String, String> store) {
        final List<KeyValue<String, String>> found = new ArrayList<>();
        try (KeyValueIterator<String, String> entries = store.all()) {
            entries.forEachRemaining(found::add);
        }
        return found;
    }

    private static String whole(final KeyValueStore<String, String> store) {
        final List<String> parts = new ArrayList<>();
        all(store).forEach(entry -> parts.add(entry.key + "=" + entry.value));
        return last(String.join(",", parts));
    }

    private abstract static class WithStore<S extends StateStore> implements Processor<String, String, String, String> {
        private final String name;
        ProcessorContext<String, String> context;
        S store;

        WithStore(final String name) {
            this.name = name;
        }

        @Override
        public void init(final ProcessorContext<String, String> context) {
            this.context = context;
            store = context.getStateStore(name);
        }
    }

    private static final class Running extends WithStore<KeyValueStore<String, String>> {
        private final String clock;

        Running(final String name, final String clock) {
            super(name);
            this.clock = clock;
        }

        @Override
        public void init(final ProcessorContext<String, String> context) {
            super.init(context);
            if (!clock.isEmpty()) {
                context.schedule(EVERY, clock.equals("wall") ? PunctuationType.WALL_CLOCK_TIME : PunctuationType.STREAM_TIME, this::tell);
            }
        }

        private void tell(final long time) {
            for (final KeyValue<String, String> entry : all(store)) {
                store.delete(entry.key);
                context.forward(new Record<>(entry.key, last(entry.value + "!"), time));
            }
        }

        @Override
        public void process(final Record<String, String> record) {
            final String key = shown(record.key());
            final String old = store.get(key);
            if (record.value() == null) {
                store.delete(key);
                context.forward(record.withValue(old).withHeaders(new RecordHeaders()));
            } else if (record.value().endsWith("z")) {
                context.forward(record.withValue(whole(store)));
            } else {
                final String made = last((old == null ? "" : old) + record.value());
                store.put(key, made);
                context.forward(record.withValue(made).withHeaders(seen(record.headers(), old)));
            }
        }
    }

    private static final class RunningValues implements FixedKeyProcessor<String, String, String> {
        private final String name;
        private FixedKeyProcessorContext<String, String> context;
        private KeyValueStore<String, String> store;

        RunningValues(final String name) {
            this.name = name;
        }

        @Override
        public void init(final FixedKeyProcessorContext<String, String> context) {
            this.context = context;
            store = context.getStateStore(name);
        }

        @Override
        public void process(final FixedKeyRecord<String, String> record) {
            final String key = shown(record.key());
            final String old = store.get(key);
            if (record.value() == null) {
                store.delete(key);
                context.forward(record.withValue(old).withHeaders(new RecordHeaders()));
            } else if (record.value().endsWith("z")) {
                context.forward(record.withValue(whole(store)));
            } else {
                final String made = last((old == null ? "" : old) + record.value());
                store.put(key, made);
                context.forward(record.withValue(made).withHeaders(seen(record.headers(), old)));
            }
        }
    }

    private static final class Timed extends WithStore<TimestampedKeyValueStore<String, String>> {
        Timed(final String name) {
            super(name);
        }

        @Override
        public void process(final Record<String, String> record) {
            final String key = shown(record.key());
            final ValueAndTimestamp<String> old = store.get(key);
            store.put(key, ValueAndTimestamp.make(record.value(), record.timestamp()));
            context.forward(record.withValue(shown(record.value()) + "@" + (old == null ? "-" : old.timestamp())));
        }
    }

    private static final class InWindows extends WithStore<WindowStore<String, String>> {
        InWindows(final String name) {
            super(name);
        }

        @Override
        public void process(final Record<String, String> record) {
            final String key = shown(record.key());
            final long time = record.timestamp();
            final String old = store.fetch(key, time);
            store.put(key, record.value() == null ? null : last((old == null ? "" : old) + record.value()), time);
            final List<String> parts = new ArrayList<>();
            try (WindowStoreIterator<String> near = store.fetch(key, Math.max(0, time - REACH), time + REACH)) {
                near.forEachRemaining(entry -> parts.add(entry.key + "=" + entry.value));
            }
            context.forward(record.withValue(last(String.join(" ", parts))));
        }
    }

    private static final class InSessions extends WithStore<SessionStore<String, String>> {
        InSessions(final String name) {
            super(name);
        }

        @Override
        public void process(final Record<String, String> record) {
            final String key = shown(record.key());
            long start = record.timestamp();
            long end = start;
            final List<KeyValue<Windowed<String>, String>> found = new ArrayList<>();
            try (KeyValueIterator<Windowed<String>, String> near = store.findSessions(key, start - GAP, start + GAP)) {
                near.forEachRemaining(found::add);
            }
            final StringBuilder text = new StringBuilder();
            for (final KeyValue<Windowed<String>, String> session : found) {
                start = Math.min(start, session.key.window().start());
                end = Math.max(end, session.key.window().end());
                text.append(session.value);
                store.remove(session.key);
            }
            final String made = last(text + shown(record.value()));
            store.put(new Windowed<>(key, new SessionWindow(start, end)), made);
            context.forward(record.withValue(start + "-" + end + "=" + made));
        }
    }

    private static final class Versioned extends WithStore<VersionedKeyValueStore<String, String>> {
        Versioned(final String name) {
            super(name);
        }

        @Override
        public void process(final Record<String, String> record) {
            final String key = shown(record.key());
            store.put(key, record.value(), record.timestamp());
            final VersionedRecord<String> before = store.get(key, Math.max(0, record.timestamp() - 5));
            context.forward(record.withValue(told(before) + "|" + told(store.get(key))));
        }
    }

    private static final class Split implements Processor<String, String, String, String> {
        private final String id;
        private ProcessorContext<String, String> context;

        Split(final String id) {
            this.id = id;
        }

        @Override
        public void init(final ProcessorContext<String, String> context) {
            this.context = context;
        }

        @Override
        public void process(final Record<String, String> record) {
            if (record.value() == null) {
                context.forward(record);
            } else {
                context.forward(record, id + (record.value().contains("x") ? "-left" : "-right"));
            }
        }
    }

    /** `named` of oracle/processors.py. */
    static final class NamedByKey implements ValueTransformerWithKey<String, String, String> {
        @Override
        public void init(final org.apache.kafka.streams.processor.ProcessorContext context) {
        }

        @Override
        public String transform(final String key, final String value) {
            return value == null || value.endsWith("z") ? null : last(key + value);
        }

        @Override
        public void close() {
        }
    }

    static final class Numbered implements ValueTransformerWithKey<String, String, String> {
        private final String name;
        private KeyValueStore<String, String> store;

        Numbered(final String name) {
            this.name = name;
        }

        @Override
        public void init(final org.apache.kafka.streams.processor.ProcessorContext context) {
            store = context.getStateStore(name);
        }

        @Override
        public String transform(final String key, final String value) {
            final String calls = store.get(key);
            final int number = calls == null ? 1 : Integer.parseInt(calls) + 1;
            store.put(key, String.valueOf(number));
            return value == null || value.contains("xy") ? null : last(number + value);
        }

        @Override
        public void close() {
        }
    }
}
