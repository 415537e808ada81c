import com.google.protobuf.CodedInputStream;
import com.google.protobuf.DescriptorProtos.DescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto.Type;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.DescriptorValidationException;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.avro.Schema;
import org.apache.avro.SchemaBuilder;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The trades with a schema registry; their twins are in bench/schemas/programs.py. The serdes do with a record what Confluent's do,
 * GenericAvroSerde and KafkaProtobufSerde of a DynamicMessage, whose schemas have been asked for: they are found by their ids.
 */
final class Schemas {
    private static final Serde<String> TEXT = Serdes.String();
    private static final Duration MINUTE = Duration.ofMinutes(1);
    private static final int HEAD = 5;
    private static final int TRADE_ID = 1;
    private static final int AVERAGE_ID = 2;
    private static final int TURNOVER_ID = 3;

    private Schemas() {
    }

    static void tradesInAvro(final StreamsBuilder builder, final String input, final String output) {
        final Schema trade = SchemaBuilder.record("Trade").fields().requiredString("symbol").requiredDouble("price").requiredLong("size")
            .requiredLong("at").requiredString("venue").requiredString("note").endRecord();
        final Schema turnover = SchemaBuilder.record("Turnover").fields().requiredDouble("amount").requiredLong("shares").endRecord();
        final Schema average = SchemaBuilder.record("Average").fields().requiredDouble("price").requiredLong("shares").endRecord();
        final Serde<GenericRecord> turnovers = avro(turnover, TURNOVER_ID);
        builder.stream(input, Consumed.with(TEXT, avro(trade, TRADE_ID)))
            .filter((key, one) -> (double) one.get(1) > 0 && one.get(0) != null)
            .selectKey((key, one) -> one.get(0).toString())
            .mapValues(one -> record(turnover, (double) one.get(1) * (long) one.get(2), (long) one.get(2)))
            .groupByKey(Grouped.with("by-symbol", TEXT, turnovers))
            .windowedBy(TimeWindows.ofSizeAndGrace(MINUTE, MINUTE))
            .aggregate(
                () -> record(turnover, 0.0, 0L),
                (symbol, one, sum) -> record(turnover, (double) sum.get(0) + (double) one.get(0), (long) sum.get(1) + (long) one.get(1)),
                Materialized.<String, GenericRecord, WindowStore<Bytes, byte[]>>as("turnover").withKeySerde(TEXT).withValueSerde(turnovers))
            .toStream()
            .mapValues(sum -> record(average, (double) sum.get(0) / (long) sum.get(1), (long) sum.get(1)))
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, MINUTE.toMillis()), avro(average, AVERAGE_ID)));
    }

    static void tradesInProtobuf(final StreamsBuilder builder, final String input, final String output) {
        final Descriptor trade = message("Trade", "symbol", Type.TYPE_STRING, "price", Type.TYPE_DOUBLE, "size", Type.TYPE_INT64,
            "at", Type.TYPE_INT64, "venue", Type.TYPE_STRING, "note", Type.TYPE_STRING);
        final Descriptor turnover = message("Turnover", "amount", Type.TYPE_DOUBLE, "shares", Type.TYPE_INT64);
        final Descriptor average = message("Average", "price", Type.TYPE_DOUBLE, "shares", Type.TYPE_INT64);
        final FieldDescriptor symbol = trade.findFieldByName("symbol");
        final FieldDescriptor price = trade.findFieldByName("price");
        final FieldDescriptor size = trade.findFieldByName("size");
        final FieldDescriptor amount = turnover.findFieldByName("amount");
        final FieldDescriptor shares = turnover.findFieldByName("shares");
        final Serde<DynamicMessage> turnovers = protobuf(turnover, TURNOVER_ID);
        builder.stream(input, Consumed.with(TEXT, protobuf(trade, TRADE_ID)))
            .filter((key, one) -> (double) one.getField(price) > 0 && one.getField(symbol) != null)
            .selectKey((key, one) -> (String) one.getField(symbol))
            .mapValues(one -> message(turnover, (double) one.getField(price) * (long) one.getField(size), (long) one.getField(size)))
            .groupByKey(Grouped.with("by-symbol", TEXT, turnovers))
            .windowedBy(TimeWindows.ofSizeAndGrace(MINUTE, MINUTE))
            .aggregate(
                () -> message(turnover, 0.0, 0L),
                (key, one, sum) -> message(turnover, (double) sum.getField(amount) + (double) one.getField(amount),
                    (long) sum.getField(shares) + (long) one.getField(shares)),
                Materialized.<String, DynamicMessage, WindowStore<Bytes, byte[]>>as("turnover").withKeySerde(TEXT).withValueSerde(turnovers))
            .toStream()
            .mapValues(sum -> message(average, (double) sum.getField(amount) / (long) sum.getField(shares), (long) sum.getField(shares)))
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, MINUTE.toMillis()), protobuf(average, AVERAGE_ID)));
    }

    private static GenericRecord record(final Schema schema, final double first, final long second) {
        final GenericData.Record made = new GenericData.Record(schema);
        made.put(0, first);
        made.put(1, second);
        return made;
    }

    private static DynamicMessage message(final Descriptor type, final double first, final long second) {
        return DynamicMessage.newBuilder(type).setField(type.getFields().get(0), first).setField(type.getFields().get(1), second).build();
    }

    private static Descriptor message(final String name, final Object... fields) {
        final DescriptorProto.Builder made = DescriptorProto.newBuilder().setName(name);
        for (int at = 0; at < fields.length; at += 2) {
            made.addField(FieldDescriptorProto.newBuilder().setName((String) fields[at]).setNumber(at / 2 + 1).setType((Type) fields[at + 1])
                .setLabel(FieldDescriptorProto.Label.LABEL_OPTIONAL));
        }
        final FileDescriptorProto file = FileDescriptorProto.newBuilder().setName(name + ".proto").setSyntax("proto3").addMessageType(made).build();
        try {
            return FileDescriptor.buildFrom(file, new FileDescriptor[0]).findMessageTypeByName(name);
        } catch (final DescriptorValidationException exception) {
            throw new IllegalStateException(exception);
        }
    }

    private static ByteArrayOutputStream begun(final int id) {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        out.write(0);
        out.writeBytes(ByteBuffer.allocate(Integer.BYTES).putInt(id).array());
        return out;
    }

    private static Serde<GenericRecord> avro(final Schema schema, final int id) {
        final Map<Integer, GenericDatumReader<GenericRecord>> readers = new ConcurrentHashMap<>(Map.of(id, new GenericDatumReader<>(schema)));
        final GenericDatumWriter<GenericRecord> writer = new GenericDatumWriter<>(schema);
        return Serdes.serdeFrom(
            (topic, value) -> {
                if (value == null) {
                    return null;
                }
                try {
                    final ByteArrayOutputStream out = begun(id);
                    final BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(out, null);
                    writer.write(value, encoder);
                    encoder.flush();
                    return out.toByteArray();
                } catch (final IOException exception) {
                    throw new SerializationException(exception);
                }
            },
            (topic, bytes) -> {
                if (bytes == null) {
                    return null;
                }
                try {
                    final GenericDatumReader<GenericRecord> reader = readers.get(ByteBuffer.wrap(bytes).getInt(1));
                    return reader.read(null, DecoderFactory.get().binaryDecoder(bytes, HEAD, bytes.length - HEAD, null));
                } catch (final IOException exception) {
                    throw new SerializationException(exception);
                }
            });
    }

    private static Serde<DynamicMessage> protobuf(final Descriptor type, final int id) {
        final Map<Integer, Descriptor> types = new ConcurrentHashMap<>(Map.of(id, type));
        return Serdes.serdeFrom(
            (topic, value) -> {
                if (value == null) {
                    return null;
                }
                try {
                    final ByteArrayOutputStream out = begun(id);
                    out.write(0);
                    value.writeTo(out);
                    return out.toByteArray();
                } catch (final IOException exception) {
                    throw new SerializationException(exception);
                }
            },
            (topic, bytes) -> {
                if (bytes == null) {
                    return null;
                }
                try {
                    final Descriptor found = types.get(ByteBuffer.wrap(bytes).getInt(1));
                    return DynamicMessage.parseFrom(found, CodedInputStream.newInstance(bytes, HEAD + 1, bytes.length - HEAD - 1));
                } catch (final IOException exception) {
                    throw new SerializationException(exception);
                }
            });
    }
}
