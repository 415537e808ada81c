import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** The least that a connector can be: each task writes a record now and then, which says whose it is and where it runs. */
public final class TickSource extends SourceConnector {
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> given) {
        settings = given;
    }

    @Override
    public void stop() {}

    @Override
    public Class<? extends Task> taskClass() {
        return Ticks.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        List<Map<String, String>> tasks = new ArrayList<>();
        for (int task = 0; task < most; task++) {
            Map<String, String> one = new HashMap<>(settings);
            one.put("task", settings.get("name") + "/" + task);
            tasks.add(one);
        }
        return tasks;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef()
                .define("topic", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "where to write")
                .define("every.ms", ConfigDef.Type.LONG, 250L, ConfigDef.Importance.LOW, "how often");
    }

    @Override
    public String version() {
        return "1";
    }

    /** Its position is the number of the tick. */
    public static final class Ticks extends SourceTask {
        private Map<String, String> settings;
        private long everyMs;
        private long number;
        private long dueMs;

        @Override
        public void start(Map<String, String> given) {
            settings = given;
            everyMs = Long.parseLong(given.get("every.ms"));
            Map<String, Object> position = context.offsetStorageReader().offset(place());
            number = position == null ? 0 : (Long) position.get("number");
            dueMs = System.currentTimeMillis();
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            long restMs = dueMs - System.currentTimeMillis();
            if (restMs > 0) {
                Thread.sleep(restMs);
            }
            dueMs = Math.max(dueMs + everyMs, System.currentTimeMillis());
            number++;
            String value = settings.get("task") + " " + System.getenv("BENCH_INSTANCE");
            return List.of(new SourceRecord(place(), Map.of("number", number), settings.get("topic"), null,
                    null, null, Schema.STRING_SCHEMA, value));
        }

        private Map<String, String> place() {
            return Map.of("task", settings.get("task"));
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
