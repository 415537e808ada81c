import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.StatementSet;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.functions.ScalarFunction;

/**
 * Runs Flink SQL on a cluster inside this process: FlinkSql SCRIPT[,SCRIPT] NAME=VALUE... puts the values where the script says
 * ${NAME}; a name with a dot is a setting of Flink's. It prints RUNNING when the job does, and ends when the job has done its input.
 */
public final class FlinkSql {
    private static final long POLL_MS = 10;

    private FlinkSql() {
    }

    /** A window's time in ms. */
    public static final class Millis extends ScalarFunction {
        public long eval(final LocalDateTime time) {
            return time.toInstant(ZoneOffset.UTC).toEpochMilli();
        }
    }

    /** The key of a window as Kafka Streams writes it: its begin behind the key; a session's end and begin. */
    public static final class WindowKey extends ScalarFunction {
        public byte[] eval(final String key, final LocalDateTime begin) {
            final byte[] text = key.getBytes(StandardCharsets.UTF_8);
            return ByteBuffer.allocate(text.length + 8).put(text).putLong(millis(begin)).array();
        }

        public byte[] eval(final String key, final LocalDateTime begin, final LocalDateTime end) {
            final byte[] text = key.getBytes(StandardCharsets.UTF_8);
            return ByteBuffer.allocate(text.length + 16).put(text).putLong(millis(end)).putLong(millis(begin)).array();
        }

        public byte[] eval(final Long key, final LocalDateTime begin) {
            return ByteBuffer.allocate(16).putLong(key).putLong(millis(begin)).array();
        }

        public byte[] eval(final Long key, final LocalDateTime begin, final LocalDateTime end) {
            return ByteBuffer.allocate(24).putLong(key).putLong(millis(end)).putLong(millis(begin)).array();
        }

        private static long millis(final LocalDateTime time) {
            return time.toInstant(ZoneOffset.UTC).toEpochMilli();
        }
    }

    public static void main(final String[] arguments) throws Exception {
        final Configuration configuration = new Configuration();
        final Map<String, String> values = new HashMap<>();
        for (int place = 1; place < arguments.length; place++) {
            final String[] parts = arguments[place].split("=", 2);
            if (parts[0].contains(".")) {
                configuration.setString(parts[0], parts[1]);
            } else {
                values.put(parts[0], parts[1]);
            }
        }
        final TableEnvironment tables =
            TableEnvironment.create(EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(configuration).build());
        tables.createTemporarySystemFunction("WINDOW_KEY", WindowKey.class);
        tables.createTemporarySystemFunction("MILLIS", Millis.class);
        final StringBuilder script = new StringBuilder();
        for (final String file : arguments[0].split(",")) {
            script.append(Files.readString(Path.of(file)));
        }
        final JobClient job = start(tables, filled(script.toString(), values));
        while (job.getJobStatus().get() != JobStatus.RUNNING) {
            Thread.sleep(POLL_MS);
        }
        System.out.println("State transition to RUNNING");
        job.getJobExecutionResult().get();
        System.out.println("FINISHED");
        // The cluster inside takes seconds to close, which are no part of the work.
        Runtime.getRuntime().halt(0);
    }

    private static JobClient start(final TableEnvironment tables, final String script) {
        final StatementSet inserts = tables.createStatementSet();
        for (final String statement : script.split(";")) {
            if (statement.isBlank()) {
                continue;
            }
            if (statement.strip().startsWith("INSERT")) {
                inserts.addInsertSql(statement.strip());
            } else {
                tables.executeSql(statement);
            }
        }
        return inserts.execute().getJobClient().orElseThrow();
    }

    private static String filled(final String script, final Map<String, String> values) {
        String text = script;
        for (final Map.Entry<String, String> value : values.entrySet()) {
            text = text.replace("${" + value.getKey() + "}", value.getValue());
        }
        return text;
    }
}
