import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

/**
 * What Confluent's Java serdes do with a value, on Apache's Avro and Google's Protobuf. Reads questions, a line each, and answers each
 * with a line: parts are separated by tabs, all but the first two in base64, values by commas.
 *
 * <p>{@code again FORMAT WRITER READER VALUES}: the values, read and written again. {@code rate FORMAT WRITER READER VALUES}: values/s of the
 * thread's processor time that are read, and written.
 */
public final class SchemaPeer {
    private static final int HEAD = 5;
    private static final long ROUND_NS_A_VALUE = 40_000L;
    private static final int ROUNDS = 6;
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();

    /** A serde with an id of four bytes before each value, whose schemas are found by id, as a registry's client keeps them. */
    interface Format {
        Object read(byte[] data) throws IOException;

        byte[] write(Object value) throws IOException;
    }

    /** As GenericAvroSerde. */
    static final class Avro implements Format {
        private final Map<Integer, Schema> writers = new HashMap<>();
        private final Map<Schema, GenericDatumReader<Object>> readers = new HashMap<>();
        private final GenericData data = new Ordered();
        private final Schema wanted;
        private final GenericDatumWriter<Object> writer;

        Avro(final String written, final String wanted) {
            this.wanted = new Schema.Parser().setValidateDefaults(false).parse(wanted);
            writers.put(1, new Schema.Parser().setValidateDefaults(false).parse(written));
            writer = new GenericDatumWriter<>(this.wanted);
        }

        @Override
        public Object read(final byte[] bytes) throws IOException {
            final ByteBuffer buffer = ByteBuffer.wrap(bytes);
            buffer.get();
            final Schema schema = writers.get(buffer.getInt());
            if (schema.getType() == Schema.Type.BYTES && wanted.getType() == Schema.Type.BYTES) {
                return ByteBuffer.wrap(Arrays.copyOfRange(bytes, HEAD, bytes.length));
            }
            final GenericDatumReader<Object> reader = readers.computeIfAbsent(schema, one -> new GenericDatumReader<>(one, wanted, data));
            final BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(bytes, HEAD, bytes.length - HEAD, null);
            return reader.read(null, decoder);
        }

        @Override
        public byte[] write(final Object value) throws IOException {
            final ByteArrayOutputStream out = new ByteArrayOutputStream();
            out.write(0);
            out.write(ByteBuffer.allocate(4).putInt(1).array());
            if (value instanceof ByteBuffer bytes && wanted.getType() == Schema.Type.BYTES) {
                out.write(bytes.array(), bytes.arrayOffset() + bytes.position(), bytes.remaining());
                return out.toByteArray();
            }
            final BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(out, null);
            writer.write(value, encoder);
            encoder.flush();
            return out.toByteArray();
        }
    }

    /** Keeps the order of a map's entries, which a HashMap loses: bytes are compared. */
    static final class Ordered extends GenericData {
        @Override
        public Object newMap(final Object old, final int size) {
            return new LinkedHashMap<Object, Object>(size);
        }
    }

    /** As KafkaProtobufSerde of a DynamicMessage. {@code READER}: the descriptors of files, each behind its imports; WRITER: a message's name. */
    static final class Protobuf implements Format {
        private final Descriptor message;

        Protobuf(final String name, final String files) throws Exception {
            final Map<String, FileDescriptor> known = new HashMap<>();
            FileDescriptor last = null;
            for (final String one : files.split(" ")) {
                final FileDescriptorProto file = FileDescriptorProto.parseFrom(Base64.getDecoder().decode(one));
                final List<FileDescriptor> imports = new ArrayList<>();
                for (final String dependency : file.getDependencyList()) {
                    imports.add(known.get(dependency));
                }
                last = FileDescriptor.buildFrom(file, imports.toArray(new FileDescriptor[0]));
                known.put(file.getName(), last);
            }
            message = last.findMessageTypeByName(name);
        }

        @Override
        public Object read(final byte[] data) throws IOException {
            final ByteBuffer buffer = ByteBuffer.wrap(data);
            buffer.get();
            buffer.getInt();
            buffer.get();
            return DynamicMessage.parseFrom(message, com.google.protobuf.CodedInputStream.newInstance(data, HEAD + 1, data.length - HEAD - 1));
        }

        @Override
        public byte[] write(final Object value) throws IOException {
            final ByteArrayOutputStream out = new ByteArrayOutputStream();
            out.write(0);
            out.write(ByteBuffer.allocate(4).putInt(1).array());
            out.write(0);
            ((DynamicMessage) value).writeTo(out);
            return out.toByteArray();
        }
    }

    private SchemaPeer() {
    }

    public static void main(final String[] arguments) throws IOException {
        final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = answered(line.split("\t", -1));
            } catch (final Exception exception) {
                answer = "!" + String.valueOf(exception).replace('\n', ' ');
            }
            out.println(answer);
        }
    }

    private static String answered(final String[] parts) throws Exception {
        final Format format = parts[1].equals("avro") ? new Avro(text(parts[2]), text(parts[3])) : new Protobuf(text(parts[2]), text(parts[3]));
        final List<byte[]> values = new ArrayList<>();
        for (final String one : parts[4].split(",", -1)) {
            values.add(Base64.getDecoder().decode(one));
        }
        return parts[0].equals("rate") ? rate(format, values) : again(format, values);
    }

    private static String text(final String part) {
        return new String(Base64.getDecoder().decode(part), StandardCharsets.UTF_8);
    }

    private static String again(final Format format, final List<byte[]> values) throws IOException {
        final StringJoiner found = new StringJoiner(",");
        for (final byte[] one : values) {
            found.add(Base64.getEncoder().encodeToString(format.write(format.read(one))));
        }
        return found.toString();
    }

    /** The best of several rounds, the first of which are for the compiler. */
    private static String rate(final Format format, final List<byte[]> values) throws IOException {
        final List<Object> read = new ArrayList<>();
        for (final byte[] one : values) {
            read.add(format.read(one));
        }
        long roundNs = ROUND_NS_A_VALUE * values.size();
        double decoded = 0;
        double encoded = 0;
        long sum = 0;
        for (int round = 0; round < ROUNDS; round++) {
            long count = 0;
            long began = CLOCK.getCurrentThreadCpuTime();
            while (CLOCK.getCurrentThreadCpuTime() - began < roundNs) {
                for (final byte[] one : values) {
                    sum += format.read(one) == null ? 1 : 0;
                }
                count += values.size();
            }
            decoded = Math.max(decoded, count * 1e9 / (CLOCK.getCurrentThreadCpuTime() - began));
            count = 0;
            began = CLOCK.getCurrentThreadCpuTime();
            while (CLOCK.getCurrentThreadCpuTime() - began < roundNs) {
                for (final Object one : read) {
                    sum += format.write(one).length;
                }
                count += values.size();
            }
            encoded = Math.max(encoded, count * 1e9 / (CLOCK.getCurrentThreadCpuTime() - began));
        }
        return decoded + "," + encoded + "," + sum;
    }
}
