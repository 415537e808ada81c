package everflow;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.spark.SparkEnv;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.reflect.ClassTag$;

/**
 * Computes Columns for Python workers: Spark's own generated code over Arrow batches, without a Spark job.
 *
 * <p>A chain of projections is added once under a number. A worker connects to the socket and sends requests, one after the other;
 * each connection has a thread and generated objects of its own, which are not for several threads.
 *
 * <p>Request: int32 number, int32 length, an Arrow record batch message. Answer: int32 length and the message of the result; or -1,
 * int32 row for which it failed (-1: no row's fault), int32 length, text in UTF-8. All integers are big-endian.
 *
 * <p>Compiled when it is needed, by the compiler that Spark's code generation uses (see column_service.py).
 */
public final class ColumnService implements Runnable {
  private static final int FAILED = -1;

  private final ServerSocketChannel server;
  private final SQLConf conf;
  private final Map segments = new ConcurrentHashMap();

  /** Listens on a Unix socket at a path; what the generated code asks of a session's settings it asks of these. */
  public ColumnService(Object path, Object conf) throws IOException {
    this.conf = (SQLConf) conf;
    this.server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    this.server.bind(UnixDomainSocketAddress.of((String) path));
    start(this, "everflow-columns");
  }

  /** Makes projections known: for each the list of its expressions and the attributes that it reads, in the order they run. */
  public void add(Object number, Object expressions, Object inputs, Object in, Object out) {
    segments.put(number, new Segment(new Object[] {expressions, inputs, in, out}));
  }

  public void run() {
    while (server.isOpen()) {
      try {
        start(new Connection(server.accept()), "everflow-columns-of-a-worker");
      } catch (IOException ended) {
        return;
      }
    }
  }

  private static void start(Runnable what, String name) {
    Thread thread = new Thread(what, name);
    thread.setDaemon(true);
    thread.start();
  }

  /**
   * What was added under a number, as bytes: some expressions keep a writer or a buffer of their own (to_json), so that each thread
   * needs its own copy, as each Spark task has.
   */
  private static final class Segment {
    final byte[] content;

    Segment(Object[] content) {
      ByteBuffer bytes = SparkEnv.get().closureSerializer().newInstance().serialize(content, ClassTag$.MODULE$.Any());
      this.content = new byte[bytes.remaining()];
      bytes.get(this.content);
    }

    Object[] copy() {
      SerializerInstance serializer = SparkEnv.get().closureSerializer().newInstance();
      return (Object[]) serializer.deserialize(
          ByteBuffer.wrap(content), Thread.currentThread().getContextClassLoader(), ClassTag$.MODULE$.Any());
    }
  }

  /** A segment's generated code and Arrow memory, for one thread. */
  private static final class Running {
    final UnsafeProjection[] projections;
    final BufferAllocator memory;
    final VectorSchemaRoot in;
    final VectorSchemaRoot out;
    final VectorLoader loader;
    final ArrowWriter writer;
    final VectorUnloader unloader;
    final InternalRow[] rows;
    int row;

    Running(Segment segment) {
      Object[] copy = segment.copy();
      List expressions = (List) copy[0];
      List inputs = (List) copy[1];
      projections = new UnsafeProjection[expressions.size()];
      rows = new InternalRow[projections.length + 1];
      for (int i = 0; i < projections.length; i++) {
        projections[i] = UnsafeProjection.create(
            (scala.collection.immutable.Seq) expressions.get(i), (scala.collection.immutable.Seq) inputs.get(i));
        projections[i].initialize(0);
      }
      memory = ArrowUtils.rootAllocator().newChildAllocator("everflow-columns", 0, Long.MAX_VALUE);
      in = VectorSchemaRoot.create(ArrowUtils.toArrowSchema((StructType) copy[2], "UTC", false, false), memory);
      out = VectorSchemaRoot.create(ArrowUtils.toArrowSchema((StructType) copy[3], "UTC", false, false), memory);
      loader = new VectorLoader(in);
      writer = ArrowWriter.create(out);
      unloader = new VectorUnloader(out);
    }

    byte[] run(byte[] message) throws IOException {
      row = FAILED;
      ReadChannel given = new ReadChannel(Channels.newChannel(new ByteArrayInputStream(message)));
      ArrowRecordBatch batch = MessageSerializer.deserializeRecordBatch(given, memory);
      try {
        loader.load(batch);
      } finally {
        batch.close();
      }
      List vectors = in.getFieldVectors();
      ColumnVector[] columns = new ColumnVector[vectors.size()];
      for (int i = 0; i < columns.length; i++) {
        columns[i] = new ArrowColumnVector((FieldVector) vectors.get(i));
      }
      writer.reset();
      Iterator found = new ColumnarBatch(columns, in.getRowCount()).rowIterator();
      for (row = 0; found.hasNext(); row++) {
        InternalRow made = (InternalRow) found.next();
        for (int i = 0; i < projections.length; i++) {
          made = (InternalRow) projections[i].apply(made);
        }
        writer.write(made);
      }
      row = FAILED;
      writer.finish();
      ByteArrayOutputStream result = new ByteArrayOutputStream(message.length);
      ArrowRecordBatch computed = unloader.getRecordBatch();
      try {
        MessageSerializer.serialize(new WriteChannel(Channels.newChannel(result)), computed);
      } finally {
        computed.close();
      }
      return result.toByteArray();
    }

    void close() {
      in.close();
      out.close();
      memory.close();
    }
  }

  /** Serves one worker until it hangs up. */
  private final class Connection extends scala.runtime.AbstractFunction0 implements Runnable {
    private final SocketChannel worker;
    private final Map running = new HashMap();

    Connection(SocketChannel worker) {
      this.worker = worker;
    }

    public void run() {
      SQLConf.withExistingConf(conf, this);
    }

    public Object apply() {
      try {
        ByteBuffer head = ByteBuffer.allocate(8);
        while (true) {
          fill(head);
          Integer number = Integer.valueOf(head.getInt());
          ByteBuffer message = ByteBuffer.allocate(head.getInt());
          fill(message);
          answer(number, message.array());
        }
      } catch (IOException hungUp) {
        return null;
      } finally {
        for (Iterator all = running.values().iterator(); all.hasNext(); ) {
          ((Running) all.next()).close();
        }
        try {
          worker.close();
        } catch (IOException closed) {
          return null;
        }
      }
    }

    private void answer(Integer number, byte[] message) throws IOException {
      Running segment = null;
      ByteBuffer answer;
      try {
        segment = (Running) running.get(number);
        if (segment == null) {
          segment = new Running((Segment) segments.get(number));
          running.put(number, segment);
        }
        byte[] result = segment.run(message);
        answer = ByteBuffer.allocate(4 + result.length).putInt(result.length).put(result);
      } catch (Throwable failure) {
        byte[] text = text(failure).getBytes(StandardCharsets.UTF_8);
        int row = segment == null ? FAILED : segment.row;
        answer = ByteBuffer.allocate(12 + text.length).putInt(FAILED).putInt(row).putInt(text.length).put(text);
      }
      answer.flip();
      while (answer.hasRemaining()) {
        worker.write(answer);
      }
    }

    private void fill(ByteBuffer buffer) throws IOException {
      buffer.clear();
      while (buffer.hasRemaining()) {
        if (worker.read(buffer) < 0) {
          throw new EOFException();
        }
      }
      buffer.flip();
    }
  }

  /** The failure as Spark's jobs tell it: message, causes and stack. */
  private static String text(Throwable failure) {
    StringWriter text = new StringWriter();
    failure.printStackTrace(new PrintWriter(text, true));
    return text.toString();
  }
}
