import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.VersionedBytesStore;
import org.apache.kafka.streams.state.VersionedBytesStoreSupplier;

/**
 * Kafka Streams' versioned stores, without one fault: a deletion at the very time of a key's latest version takes that version away, and is not kept
 * itself, so that an older version that comes later is the latest (docs/differences.md). A second deletion at that time finds no latest version, and is kept.
 */
final class OracleVersions implements VersionedBytesStoreSupplier {
    private final VersionedBytesStoreSupplier original;

    OracleVersions(final String name, final Duration history) {
        original = Stores.persistentVersionedKeyValueStore(name, history);
    }

    @Override
    public KeyValueStore<Bytes, byte[]> get() {
        final KeyValueStore<Bytes, byte[]> store = original.get();
        return (VersionedBytesStore) Proxy.newProxyInstance(OracleVersions.class.getClassLoader(), new Class<?>[] {VersionedBytesStore.class}, (proxy, method, given) -> {
            try {
                final Object answer = method.invoke(store, given);
                final boolean deletes = given != null && (method.getName().equals("delete") || method.getName().equals("put") && given[1] == null);
                if (deletes) {
                    method.invoke(store, given);
                }
                return answer;
            } catch (final InvocationTargetException error) {
                throw error.getCause();
            }
        });
    }

    @Override
    public String name() {
        return original.name();
    }

    @Override
    public String metricsScope() {
        return original.metricsScope();
    }

    @Override
    public long historyRetentionMs() {
        return original.historyRetentionMs();
    }
}
