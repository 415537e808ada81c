package everflow;

import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ReadableByteChannel;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import net.razorvine.pickle.Unpickler;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.SparkConf;
import org.apache.spark.serializer.JavaSerializer;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.execution.python.BatchEvalPythonExec;
import org.apache.spark.sql.execution.python.EvaluatePython;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * Computes Columns for Python workers: Spark's own generated code over Arrow batches, without a Spark job.
 *
 * <p>A chain of projections is added once under a number. A worker connects to the socket and sends requests, one after the other;
 * each connection has a thread and generated objects of its own, which are not for several threads.
 *
 * <p>Request: int32 number, int32 length, an Arrow record batch message. Answer: int32 length and the message of the result (see
 * addCall for pickled functions); or -1,
 * int32 row for which it failed (-1: no row's fault), int32 length, text in UTF-8. All integers are big-endian.
 *
 * <p>Compiled when it is needed, by the compiler that Spark's code generation uses (see columns.py).
 */
public final class ColumnService implements Runnable {
  private static final int FAILED = -1;
  /** As in everflow/sockets.py. */
  private static final int MOST_MESSAGE_BYTES = 1 << 30;
  private static final int PICKLED_TOGETHER = 1000;
  private static final String ARGUMENTS = "arguments";
  private static final String RESULTS = "results";

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

  /** Makes known how arguments of Python functions are pickled, and results unpickled (see BatchEvalPythonExec). */
  public void addCall(Object arguments, Object in, Object binaryAsBytes, Object results, Object type, Object out) {
    EvaluatePython.registerPicklers();
    segments.put(arguments, new Segment(new Object[] {ARGUMENTS, in, binaryAsBytes}));
    segments.put(results, new Segment(new Object[] {RESULTS, type, out}));
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
   * A static method of Spark's with the first of its arguments; what a later Spark has added gets the default that Scala keeps in a
   * method of its own. So one source is for all the Sparks that there are.
   */
  private static Object called(Class of, String name, Object[] given) {
    Method[] methods = of.getDeclaredMethods();
    for (int count = given.length; count < given.length + 9; count++) {
      for (int i = 0; i < methods.length; i++) {
        if (methods[i].getName().equals(name) && methods[i].getParameterTypes().length == count) {
          return invoked(of, methods[i], given);
        }
      }
    }
    throw new IllegalStateException("this Spark has no " + of.getName() + "." + name + " of " + given.length + " arguments or more");
  }

  private static Object invoked(Class of, Method method, Object[] given) {
    try {
      Object[] all = Arrays.copyOf(given, method.getParameterTypes().length);
      for (int i = given.length; i < all.length; i++) {
        all[i] = of.getDeclaredMethod(method.getName() + "$default$" + (i + 1), new Class[0]).invoke(null, new Object[0]);
      }
      return method.invoke(null, all);
    } catch (InvocationTargetException failed) {
      Throwable cause = failed.getCause();
      throw cause instanceof RuntimeException ? (RuntimeException) cause : new IllegalStateException(cause);
    } catch (ReflectiveOperationException other) {
      throw new IllegalStateException(other);
    }
  }

  /** What was added under a number, as bytes: each thread needs a copy, as some expressions keep a buffer of their own (to_json). */
  private static final class Segment {
    final byte[] content;

    Segment(Object[] content) {
      ByteBuffer bytes = serializer().serialize(content, ClassTag$.MODULE$.Any());
      this.content = new byte[bytes.remaining()];
      bytes.get(this.content);
    }

    /** As Spark's own for closures. SparkEnv cannot be named here: PySpark 4.3 lacks classes that its methods do. */
    private static SerializerInstance serializer() {
      return new JavaSerializer(new SparkConf(false)).newInstance();
    }

    Running running() {
      Object[] copy = (Object[]) serializer().deserialize(
          ByteBuffer.wrap(content), Thread.currentThread().getContextClassLoader(), ClassTag$.MODULE$.Any());
      if (ARGUMENTS.equals(copy[0])) {
        return new Arguments((StructType) copy[1], ((Boolean) copy[2]).booleanValue());
      }
      if (RESULTS.equals(copy[0])) {
        return new Results((DataType) copy[1], (StructType) copy[2]);
      }
      return new Projections((List) copy[0], (List) copy[1], (StructType) copy[2], (StructType) copy[3]);
    }
  }

  /** What a number stands for, with its Arrow memory, for one thread. */
  private abstract static class Running {
    final BufferAllocator memory = ArrowUtils.rootAllocator().newChildAllocator("everflow-columns", 0, Long.MAX_VALUE);
    int row = FAILED;

    /** Appends what becomes of a message to an answer. */
    abstract void run(Bytes message, Bytes answer) throws IOException;

    abstract void close();

    VectorSchemaRoot vectors(StructType schema) {
      Object[] given = {schema, "UTC", Boolean.FALSE, Boolean.FALSE};
      return VectorSchemaRoot.create((Schema) called(ArrowUtils.class, "toArrowSchema", given), memory);
    }
  }

  /** Reads rows of Arrow messages. */
  private static final class Reader {
    final VectorSchemaRoot in;
    final VectorLoader loader;
    final BufferAllocator memory;

    Reader(Running of, StructType schema) {
      memory = of.memory;
      in = of.vectors(schema);
      loader = new VectorLoader(in);
    }

    Iterator rows(Bytes message) throws IOException {
      ArrowRecordBatch batch = MessageSerializer.deserializeRecordBatch(new ReadChannel(message), memory);
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
      return new ColumnarBatch(columns, in.getRowCount()).rowIterator();
    }
  }

  /** Writes rows as an Arrow message. */
  private static final class Writer {
    final VectorSchemaRoot out;
    final ArrowWriter rows;
    final VectorUnloader unloader;

    Writer(Running of, StructType schema) {
      out = of.vectors(schema);
      rows = ArrowWriter.create(out);
      unloader = new VectorUnloader(out);
    }

    void finish(Bytes answer) throws IOException {
      rows.finish();
      ArrowRecordBatch computed = unloader.getRecordBatch();
      try {
        MessageSerializer.serialize(new WriteChannel(answer), computed);
      } finally {
        computed.close();
      }
    }
  }

  /** A segment's generated code. */
  private static final class Projections extends Running {
    final UnsafeProjection[] projections;
    final Reader reader;
    final Writer writer;

    Projections(List expressions, List inputs, StructType in, StructType out) {
      projections = new UnsafeProjection[expressions.size()];
      for (int i = 0; i < projections.length; i++) {
        projections[i] = UnsafeProjection.create(
            (scala.collection.immutable.Seq) expressions.get(i), (scala.collection.immutable.Seq) inputs.get(i));
        projections[i].initialize(0);
      }
      reader = new Reader(this, in);
      writer = new Writer(this, out);
    }

    void run(Bytes message, Bytes answer) throws IOException {
      row = FAILED;
      Iterator found = reader.rows(message);
      writer.rows.reset();
      for (row = 0; found.hasNext(); row++) {
        InternalRow made = (InternalRow) found.next();
        for (int i = 0; i < projections.length; i++) {
          made = (InternalRow) projections[i].apply(made);
        }
        writer.rows.write(made);
      }
      row = FAILED;
      writer.finish(answer);
    }

    void close() {
      reader.in.close();
      writer.out.close();
      memory.close();
    }
  }

  /** Arguments of Python functions, pickled as Spark pickles them: each batch with its length before it. */
  private static final class Arguments extends Running implements Iterator {
    final StructType schema;
    final boolean binaryAsBytes;
    final Reader reader;
    final UnsafeProjection nullable;
    Iterator rows;

    Arguments(StructType schema, boolean binaryAsBytes) {
      this.schema = schema;
      this.binaryAsBytes = binaryAsBytes;
      reader = new Reader(this, schema);
      nullable = UnsafeProjection.create(schema);
    }

    public boolean hasNext() {
      return rows.hasNext();
    }

    /** The next row as pickling reads it: columns refuse to be asked for a value that is null. */
    public Object next() {
      return nullable.apply((InternalRow) rows.next());
    }

    void run(Bytes message, Bytes answer) throws IOException {
      rows = reader.rows(message);
      DataOutputStream pickled = new DataOutputStream(Channels.newOutputStream(answer));
      Object[] given = {
        CollectionConverters.asScala((Iterator) this), schema, Integer.valueOf(PICKLED_TOGETHER), Boolean.valueOf(binaryAsBytes)
      };
      scala.collection.Iterator batches =
          (scala.collection.Iterator) called(BatchEvalPythonExec.class, "getInputIterator", given);
      while (batches.hasNext()) {
        byte[] batch = (byte[]) batches.next();
        pickled.writeInt(batch.length);
        pickled.write(batch);
      }
    }

    void close() {
      reader.in.close();
      memory.close();
    }
  }

  /** Results of Python functions, which come as arguments go, in the types that were declared. */
  private static final class Results extends Running {
    final scala.Function1 fromJava;
    final boolean several;
    final Writer writer;

    Results(DataType type, StructType out) {
      fromJava = EvaluatePython.makeFromJava(type);
      several = out.length() > 1;
      writer = new Writer(this, out);
    }

    void run(Bytes message, Bytes answer) throws IOException {
      ByteBuffer pickled = message.content;
      writer.rows.reset();
      row = 0;
      while (pickled.hasRemaining()) {
        byte[] batch = new byte[pickled.getInt()];
        pickled.get(batch);
        for (Iterator made = ((List) new Unpickler().loads(batch)).iterator(); made.hasNext(); row++) {
          Object value = fromJava.apply(made.next());
          writer.rows.write(several ? (InternalRow) value : new GenericInternalRow(new Object[] {value}));
        }
      }
      row = FAILED;
      writer.finish(answer);
    }

    void close() {
      writer.out.close();
      memory.close();
    }
  }

  /** Serves one worker until it hangs up. */
  private final class Connection extends scala.runtime.AbstractFunction0 implements Runnable {
    private final SocketChannel worker;
    private final Map running = new HashMap();
    private final Bytes message = new Bytes();
    private final Bytes answer = new Bytes();

    Connection(SocketChannel worker) {
      this.worker = worker;
    }

    public void run() {
      SQLConf.withExistingConf(conf, this);
    }

    public Object apply() {
      try {
        while (true) {
          receive(8);
          Integer number = Integer.valueOf(message.content.getInt());
          int size = message.content.getInt();
          if (size < 0 || size > MOST_MESSAGE_BYTES) {
            refuse("a question of " + size + " bytes: " + MOST_MESSAGE_BYTES + " are the most", FAILED);
            return null; // what comes behind it cannot be told from questions
          }
          receive(size);
          answer(number);
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

    private void answer(Integer number) throws IOException {
      Running segment = null;
      answer.clear(4);
      answer.content.putInt(0);
      try {
        segment = (Running) running.get(number);
        if (segment == null) {
          segment = ((Segment) segments.get(number)).running();
          running.put(number, segment);
        }
        segment.run(message, answer);
        answer.content.putInt(0, answer.content.position() - 4);
      } catch (Throwable failure) {
        refuse(text(failure), segment == null ? FAILED : segment.row);
        return;
      }
      send();
    }

    private void refuse(String why, int row) throws IOException {
      byte[] text = why.getBytes(StandardCharsets.UTF_8);
      answer.clear(12 + text.length);
      answer.content.putInt(FAILED).putInt(row).putInt(text.length).put(text);
      send();
    }

    private void send() throws IOException {
      answer.content.flip();
      while (answer.content.hasRemaining()) {
        worker.write(answer.content);
      }
    }

    /** So many bytes of the worker's into the message. */
    private void receive(int size) throws IOException {
      message.clear(size);
      message.content.limit(size);
      while (message.content.hasRemaining()) {
        if (worker.read(message.content) < 0) {
          throw new EOFException();
        }
      }
      message.content.flip();
    }
  }

  /** Bytes outside the heap, used again for each message: megabytes of them would fill it once a batch. */
  private static final class Bytes implements ReadableByteChannel, WritableByteChannel {
    ByteBuffer content = ByteBuffer.allocateDirect(1 << 16);

    /** Empties it, and makes room for so many. */
    void clear(int size) {
      content.clear();
      reserve(size);
    }

    private void reserve(int more) {
      if (content.remaining() < more) {
        if (more > MOST_MESSAGE_BYTES - content.position()) {
          throw new IllegalStateException(
              "Columns make more than " + MOST_MESSAGE_BYTES + " bytes of the records that are computed at once");
        }
        ByteBuffer larger = ByteBuffer.allocateDirect(
            Math.max((int) Math.min(2L * content.capacity(), MOST_MESSAGE_BYTES), content.position() + more));
        content.flip();
        larger.put(content);
        content = larger;
      }
    }

    public int write(ByteBuffer more) {
      int size = more.remaining();
      reserve(size);
      content.put(more);
      return size;
    }

    public int read(ByteBuffer into) {
      int size = Math.min(content.remaining(), into.remaining());
      if (size == 0 && into.hasRemaining()) {
        return -1;
      }
      ByteBuffer part = (ByteBuffer) content.duplicate();
      part.limit(part.position() + size);
      into.put(part);
      content.position(part.position());
      return size;
    }

    public boolean isOpen() {
      return true;
    }

    public void close() {
      content.clear();
    }
  }

  /** The failure as Spark's jobs tell it: message, causes and stack. */
  private static String text(Throwable failure) {
    StringWriter text = new StringWriter();
    failure.printStackTrace(new PrintWriter(text, true));
    return text.toString();
  }
}
