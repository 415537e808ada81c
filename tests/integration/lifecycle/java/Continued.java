import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The program of test_lifecycle_java.py in Kafka Streams: {@code Continued BOOTSTRAP APPLICATION_ID FOLDER VISITS OTHERS OUTPUT [KEY=VALUE ...]};
 * results go to topics called OUTPUT and a suffix. It runs until standard input ends, and then leaves its group.
 */
public final class Continued {
    private static final Serde<String> TEXT = Serdes.String();
    private static final Duration GRACE = Duration.ofMinutes(10);

    private Continued() {
    }

    public static void main(final String[] given) throws Exception {
        final Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, given[1]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, given[2]);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put("auto.offset.reset", "earliest");
        // Records of 1970: by their times the broker would delete a window's changelog in the middle of a test.
        config.put(StreamsConfig.WINDOW_STORE_CHANGE_LOG_ADDITIONAL_RETENTION_MS_CONFIG, Duration.ofDays(36_500).toMillis());
        for (int place = 6; place < given.length; place++) {
            final String[] setting = given[place].split("=", 2);
            config.put(setting[0], setting[1]);
        }
        final KafkaStreams streams = new KafkaStreams(program(given[3], given[4], given[5]).build(), config);
        streams.start();
        while (System.in.read() >= 0) {
            // Only the end of the stream counts.
        }
        final boolean closed = streams.close(CloseOptions.timeout(Duration.ofSeconds(30))
            .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
        System.exit(closed ? 0 : 1);
    }

    private static StreamsBuilder program(final String visitsTopic, final String othersTopic, final String output) {
        final StreamsBuilder builder = new StreamsBuilder();
        final KStream<String, String> visits = builder.stream(visitsTopic, Consumed.with(TEXT, TEXT));
        final KStream<String, String> others = builder.stream(othersTopic, Consumed.with(TEXT, TEXT));
        visits.groupByKey()
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream().to(output + "counts", Produced.with(TEXT, Serdes.Long()));
        visits.groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(1), GRACE))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windows"))
            .toStream((key, count) -> key.key() + "@" + key.window().start())
            .to(output + "windows", Produced.with(TEXT, Serdes.Long()));
        visits.groupByKey()
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(300), GRACE))
            .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("sessions"))
            .toStream((key, count) -> key.key() + "@" + key.window().start() + "-" + key.window().end())
            .to(output + "sessions", Produced.with(TEXT, Serdes.Long()));
        visits.join(others, (left, right) -> left + "&" + right,
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(200), GRACE),
                StreamJoined.with(TEXT, TEXT, TEXT).withName("pairs").withStoreName("pairs"))
            .to(output + "pairs");
        visits.selectKey((key, value) -> value)
            .groupByKey(Grouped.with("by-value", TEXT, TEXT))
            .reduce((all, value) -> all.length() < 40 ? all + value.charAt(0) : all, Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("values"))
            .toStream().to(output + "values");
        return builder;
    }
}
