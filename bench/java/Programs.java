import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/** The programs of `bench programs` in Kafka Streams, JSON by Jackson; their twins are in bench/programs/topologies.py. */
final class Programs {
    private static final Serde<String> TEXT = Serdes.String();

    private Programs() {
    }

    static StreamsBuilder build(final String program, final String input, final String output) {
        final StreamsBuilder builder = new StreamsBuilder();
        switch (program) {
            case "trades" -> trades(builder, input, output);
            case "trades-avro" -> Schemas.tradesInAvro(builder, input, output);
            case "trades-protobuf" -> Schemas.tradesInProtobuf(builder, input, output);
            case "flights" -> flights(builder, input, output);
            case "words" -> words(builder, input, output);
            case "sessions" -> sessions(builder, input, output);
            case "baskets" -> baskets(builder, input, output);
            case "invoices" -> orderSums(builder, input, output);
            case "split" -> split(builder, input, output);
            case "chain" -> chain(builder, input, output);
            case "enrich" -> enrich(builder, input, output);
            case "pairs" -> pairs(builder, input, output);
            case "final" -> finalReadings(builder, input, output);
            case "cities" -> cities(builder, input, output);
            case "fleets" -> fleets(builder, input, output);
            case "once" -> once(builder, input, output);
            case "latest" -> latest(builder, input, output);
            case "bursts" -> bursts(builder, input, output);
            case "accounts" -> accounts(builder, input, output);
            case "q0", "q1", "q2", "q3", "q4", "q5", "q7", "q8" -> Nexmark.build(program, builder, input, output);
            case "sums-old" -> sums(builder, input, output, "old");
            case "sums-insert" -> sums(builder, input, output, "insert");
            case "sums-rename" -> sums(builder, input, output, "rename");
            case "sums-field" -> sums(builder, input, output, "field");
            case "sums-grow" -> sums(builder, input, output, "grow");
            case "sums-reshard" -> sums(builder, input, output, "reshard");
            case "joined-old" -> joined(builder, input, output, "old");
            case "joined-insert" -> joined(builder, input, output, "insert");
            case "joined-rename" -> joined(builder, input, output, "rename");
            case "joined-field" -> joined(builder, input, output, "field");
            case "joined-grow" -> joined(builder, input, output, "grow");
            case "joined-reshard" -> joined(builder, input, output, "reshard");
            default -> throw new IllegalArgumentException("No such program: " + program);
        }
        return builder;
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Trade(String symbol, double price, long size, long at) {
    }

    record Turnover(double amount, long shares) {
    }

    record Average(double price, long shares) {
    }

    private static void trades(final StreamsBuilder builder, final String input, final String output) {
        final Duration minute = Duration.ofMinutes(1);
        final Serde<Turnover> turnover = json(Turnover.class);
        builder.stream(input, Consumed.with(TEXT, json(Trade.class)))
            .filter((key, trade) -> trade.price() > 0 && trade.symbol() != null)
            .selectKey((key, trade) -> trade.symbol())
            .mapValues(trade -> new Turnover(trade.price() * trade.size(), trade.size()))
            .groupByKey(Grouped.with("by-symbol", TEXT, turnover))
            .windowedBy(TimeWindows.ofSizeAndGrace(minute, minute))
            .aggregate(
                () -> new Turnover(0, 0),
                (symbol, trade, sum) -> new Turnover(sum.amount() + trade.amount(), sum.shares() + trade.shares()),
                Materialized.<String, Turnover, WindowStore<Bytes, byte[]>>as("turnover").withKeySerde(TEXT).withValueSerde(turnover))
            .toStream()
            .mapValues(sum -> new Average(sum.amount() / sum.shares(), sum.shares()))
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, minute.toMillis()), json(Average.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Flight(String carrier, Double dep_delay) {
    }

    record DelaySum(long flights, double delay) {
    }

    record MeanDelay(long flights, double mean_delay) {
    }

    private static void flights(final StreamsBuilder builder, final String input, final String output) {
        final Duration day = Duration.ofDays(1);
        builder.stream(input, Consumed.with(TEXT, json(Flight.class)))
            .filter((key, flight) -> flight.dep_delay() != null)
            .groupBy((key, flight) -> flight.carrier(), Grouped.with("by-carrier", TEXT, json(Flight.class)))
            .windowedBy(TimeWindows.ofSizeAndGrace(day, Duration.ofHours(1)))
            .aggregate(
                () -> new DelaySum(0, 0),
                (carrier, flight, sum) -> new DelaySum(sum.flights() + 1, sum.delay() + flight.dep_delay()),
                Materialized.<String, DelaySum, WindowStore<Bytes, byte[]>>as("delay-by-carrier")
                    .withKeySerde(TEXT).withValueSerde(json(DelaySum.class)))
            .toStream()
            .mapValues(sum -> new MeanDelay(sum.flights(), sum.delay() / sum.flights()))
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, day.toMillis()), json(MeanDelay.class)));
    }

    private static void words(final StreamsBuilder builder, final String input, final String output) {
        builder.stream(input, Consumed.with(TEXT, TEXT))
            .flatMapValues(line -> Arrays.asList(line.toLowerCase(Locale.ROOT).split(" ")))
            .groupBy((key, word) -> word, Grouped.with("by-word", TEXT, TEXT))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(output, Produced.with(TEXT, Serdes.Long()));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record View(String page, long ms) {
    }

    record Visit(long pages, long ms) {
    }

    private static void sessions(final StreamsBuilder builder, final String input, final String output) {
        builder.stream(input, Consumed.with(TEXT, json(View.class)))
            .groupByKey(Grouped.with(TEXT, json(View.class)))
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMinutes(30), Duration.ofMinutes(5)))
            .aggregate(
                () -> new Visit(0, 0),
                (user, view, visit) -> new Visit(visit.pages() + 1, visit.ms() + view.ms()),
                (user, earlier, later) -> new Visit(earlier.pages() + later.pages(), earlier.ms() + later.ms()),
                Materialized.<String, Visit, SessionStore<Bytes, byte[]>>as("visits")
                    .withKeySerde(TEXT).withValueSerde(json(Visit.class)))
            .toStream()
            .to(output, Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(String.class), json(Visit.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Order(String item, String country, double price, long quantity) {
    }

    record Basket(long orders, double total, double best) {
    }

    private static void baskets(final StreamsBuilder builder, final String input, final String output) {
        builder.stream(input, Consumed.with(TEXT, json(Order.class)))
            .groupByKey(Grouped.with(TEXT, json(Order.class)))
            .aggregate(
                () -> new Basket(0, 0, 0),
                (customer, order, basket) -> {
                    final double amount = order.price() * order.quantity();
                    return new Basket(basket.orders() + 1, basket.total() + amount, Math.max(basket.best(), amount));
                },
                Materialized.<String, Basket, KeyValueStore<Bytes, byte[]>>as("baskets")
                    .withKeySerde(TEXT).withValueSerde(json(Basket.class)))
            .toStream()
            .to(output, Produced.with(TEXT, json(Basket.class)));
    }

    record OrderSum(long orders, double total) {
    }

    private static void orderSums(final StreamsBuilder builder, final String input, final String output) {
        builder.stream(input, Consumed.with(TEXT, json(Order.class)))
            .mapValues(order -> {
                final double amount = order.price() * order.quantity();
                return order.quantity() < 5 ? amount : amount * 0.9;
            })
            .groupByKey(Grouped.with(TEXT, Serdes.Double()))
            .aggregate(
                () -> new OrderSum(0, 0),
                (customer, amount, sum) -> new OrderSum(sum.orders() + 1, sum.total() + amount),
                Materialized.<String, OrderSum, KeyValueStore<Bytes, byte[]>>as("invoices")
                    .withKeySerde(TEXT).withValueSerde(json(OrderSum.class)))
            .toStream()
            .to(output, Produced.with(TEXT, json(OrderSum.class)));
    }

    record Invoice(String item, double amount, double fee) {
    }

    record Parcel(String item, long quantity) {
    }

    private static void split(final StreamsBuilder builder, final String input, final String output) {
        builder.stream(input, Consumed.with(TEXT, json(Order.class)))
            .filter((key, order) -> order.quantity() > 0)
            .split()
            .branch((key, order) -> order.price() * order.quantity() >= 2000, Branched.withConsumer(large -> invoices(large, output)))
            .branch((key, order) -> "NZ".equals(order.country()), Branched.withConsumer(home -> parcels(home, output + "-home")))
            .defaultBranch(Branched.withConsumer(abroad -> parcels(abroad, output + "-abroad")));
    }

    private static void invoices(final KStream<String, Order> large, final String output) {
        large.mapValues(order -> new Invoice(order.item(), order.price() * order.quantity(), order.price() * order.quantity() * 0.01))
            .to(output + "-large", Produced.with(TEXT, json(Invoice.class)));
    }

    private static void parcels(final KStream<String, Order> orders, final String output) {
        orders.mapValues(order -> new Parcel(order.item().toUpperCase(Locale.ROOT), order.quantity()))
            .to(output, Produced.with(TEXT, json(Parcel.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Click(String user, String team, long ms) {
    }

    record UserClicks(long clicks, long ms, String team) {
    }

    record TeamClicks(long most, long longest) {
    }

    private static void chain(final StreamsBuilder builder, final String input, final String output) {
        builder.stream(input, Consumed.with(TEXT, json(Click.class)))
            .filter((key, click) -> click.ms() >= 0)
            .groupBy((key, click) -> click.user(), Grouped.with("by-user", TEXT, json(Click.class)))
            .aggregate(
                () -> new UserClicks(0, 0, null),
                (user, click, sum) -> new UserClicks(sum.clicks() + 1, sum.ms() + click.ms(), click.team()),
                Materialized.<String, UserClicks, KeyValueStore<Bytes, byte[]>>as("per-user")
                    .withKeySerde(TEXT).withValueSerde(json(UserClicks.class)))
            .toStream()
            .groupBy((user, sum) -> sum.team(), Grouped.with("by-team", TEXT, json(UserClicks.class)))
            .aggregate(
                () -> new TeamClicks(0, 0),
                (team, sum, best) -> new TeamClicks(Math.max(best.most(), sum.clicks()), Math.max(best.longest(), sum.ms())),
                Materialized.<String, TeamClicks, KeyValueStore<Bytes, byte[]>>as("per-team")
                    .withKeySerde(TEXT).withValueSerde(json(TeamClicks.class)))
            .toStream()
            .to(output, Produced.with(TEXT, json(TeamClicks.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Event(String kind, String city, double rate, String item, double amount) {
    }

    record Card(String city, double rate) {
    }

    record Priced(String item, String city, double fee) {
    }

    private static void enrich(final StreamsBuilder builder, final String input, final String output) {
        final KStream<String, Event> events = builder.stream(input, Consumed.with(TEXT, json(Event.class)));
        final KTable<String, Card> cards = events
            .filter((key, event) -> "card".equals(event.kind()))
            .mapValues(event -> new Card(event.city(), event.rate()))
            .toTable(Materialized.<String, Card, KeyValueStore<Bytes, byte[]>>as("cards").withKeySerde(TEXT).withValueSerde(json(Card.class)));
        events
            .filter((key, event) -> "purchase".equals(event.kind()))
            .join(
                cards,
                (bought, card) -> new Priced(bought.item(), card.city(), bought.amount() * card.rate()),
                Joined.with(TEXT, json(Event.class), json(Card.class)))
            .to(output, Produced.with(TEXT, json(Priced.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Shown(String kind, String campaign, long ms) {
    }

    record Clicked(String campaign, long ms) {
    }

    private static void pairs(final StreamsBuilder builder, final String input, final String output) {
        final Duration minute = Duration.ofMinutes(1);
        final KStream<String, Shown> events = builder.stream(input, Consumed.with(TEXT, json(Shown.class)));
        events
            .filter((key, event) -> "view".equals(event.kind()))
            .join(
                events.filter((key, event) -> "click".equals(event.kind())),
                (view, click) -> new Clicked(view.campaign(), click.ms() - view.ms()),
                JoinWindows.ofTimeDifferenceAndGrace(minute, minute),
                StreamJoined.with(TEXT, json(Shown.class), json(Shown.class)).withStoreName("clicked"))
            .to(output, Produced.with(TEXT, json(Clicked.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Reading(double celsius, long percent) {
    }

    record Readings(long readings, double celsius) {
    }

    private static void finalReadings(final StreamsBuilder builder, final String input, final String output) {
        final Duration five = Duration.ofSeconds(5);
        builder.stream(input, Consumed.with(TEXT, json(Reading.class)))
            .groupByKey(Grouped.with(TEXT, json(Reading.class)))
            .windowedBy(TimeWindows.ofSizeAndGrace(five, five))
            .aggregate(
                () -> new Readings(0, 0),
                (sensor, reading, sum) -> new Readings(sum.readings() + 1, sum.celsius() + reading.celsius()),
                Materialized.<String, Readings, WindowStore<Bytes, byte[]>>as("readings").withKeySerde(TEXT).withValueSerde(json(Readings.class)))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream()
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, five.toMillis()), json(Readings.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Person(String city, long age) {
    }

    record City(long people, long years) {
    }

    private static void cities(final StreamsBuilder builder, final String input, final String output) {
        builder.stream(input, Consumed.with(TEXT, json(Person.class)))
            .toTable(Materialized.<String, Person, KeyValueStore<Bytes, byte[]>>as("people").withKeySerde(TEXT).withValueSerde(json(Person.class)))
            .groupBy((key, person) -> KeyValue.pair(person.city(), person), Grouped.with("by-city", TEXT, json(Person.class)))
            .aggregate(
                () -> new City(0, 0),
                (city, person, sum) -> new City(sum.people() + 1, sum.years() + person.age()),
                (city, person, sum) -> new City(sum.people() - 1, sum.years() - person.age()),
                Materialized.<String, City, KeyValueStore<Bytes, byte[]>>as("cities").withKeySerde(TEXT).withValueSerde(json(City.class)))
            .toStream()
            .to(output, Produced.with(TEXT, json(City.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Moved(String kind, String name, String fleet, double km) {
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Fleet(String name) {
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Vehicle(String fleet, double km) {
    }

    private static void fleets(final StreamsBuilder builder, final String input, final String output) {
        final KStream<String, Moved> events = builder.stream(input, Consumed.with(TEXT, json(Moved.class)));
        final KTable<String, Fleet> names = events
            .filter((key, event) -> "fleet".equals(event.kind()))
            .mapValues(event -> new Fleet(event.name()))
            .toTable(Materialized.<String, Fleet, KeyValueStore<Bytes, byte[]>>as("fleets").withKeySerde(TEXT).withValueSerde(json(Fleet.class)));
        events
            .filter((key, event) -> "vehicle".equals(event.kind()))
            .mapValues(event -> new Vehicle(event.fleet(), event.km()))
            .toTable(Materialized.<String, Vehicle, KeyValueStore<Bytes, byte[]>>as("vehicles").withKeySerde(TEXT).withValueSerde(json(Vehicle.class)))
            .join(
                names,
                Vehicle::fleet,
                (vehicle, fleet) -> new Vehicle(fleet.name(), vehicle.km()),
                TableJoined.as("fleets-of-vehicles"),
                Materialized.<String, Vehicle, KeyValueStore<Bytes, byte[]>>with(TEXT, json(Vehicle.class)))
            .toStream()
            .to(output, Produced.with(TEXT, json(Vehicle.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Payment(double amount, String country) {
    }

    /** Kafka Streams has no operator for it: the processor of its tutorials, with a window store. */
    private static void once(final StreamsBuilder builder, final String input, final String output) {
        final Duration within = Duration.ofSeconds(10);
        builder.addStateStore(Stores.windowStoreBuilder(
            Stores.persistentWindowStore("seen", within.multipliedBy(2), within, false), TEXT, Serdes.ByteArray()));
        builder.stream(input, Consumed.with(TEXT, json(Payment.class)))
            .filter((key, payment) -> payment.amount() > 0)
            .processValues(() -> new FirstOfKey<Payment>(within.toMillis()), "seen")
            .to(output, Produced.with(TEXT, json(Payment.class)));
    }

    private static void latest(final StreamsBuilder builder, final String input, final String output) {
        builder.table(input, Consumed.with(TEXT, TEXT), Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("latest-values"))
            .toStream()
            .to(output, Produced.with(TEXT, TEXT));
    }

    private static final class FirstOfKey<V> implements FixedKeyProcessor<String, V, V> {
        private final long withinMs;
        private FixedKeyProcessorContext<String, V> context;
        private WindowStore<String, byte[]> seen;

        FirstOfKey(final long withinMs) {
            this.withinMs = withinMs;
        }

        @Override
        public void init(final FixedKeyProcessorContext<String, V> context) {
            this.context = context;
            seen = context.getStateStore("seen");
        }

        @Override
        public void process(final FixedKeyRecord<String, V> record) {
            final long time = record.timestamp();
            try (WindowStoreIterator<byte[]> known = seen.fetch(record.key(), time - withinMs, time + withinMs)) {
                if (known.hasNext()) {
                    return;
                }
            }
            seen.put(record.key(), new byte[0], time);
            context.forward(record);
        }
    }

    private static void bursts(final StreamsBuilder builder, final String input, final String output) {
        final Duration apart = Duration.ofMillis(500);
        builder.stream(input, Consumed.with(TEXT, json(Reading.class)))
            .groupByKey(Grouped.with(TEXT, json(Reading.class)))
            .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(apart, Duration.ofSeconds(5)))
            .aggregate(
                () -> new Readings(0, 0),
                (sensor, reading, sum) -> new Readings(sum.readings() + 1, sum.celsius() + reading.celsius()),
                Materialized.<String, Readings, WindowStore<Bytes, byte[]>>as("bursts").withKeySerde(TEXT).withValueSerde(json(Readings.class)))
            .toStream()
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, apart.toMillis()), json(Readings.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Booking(String kind, double amount) {
    }

    record Account(long orders, double due) {
    }

    private static void accounts(final StreamsBuilder builder, final String input, final String output) {
        final KStream<String, Booking> bookings = builder.stream(input, Consumed.with(TEXT, json(Booking.class)));
        final KGroupedStream<String, Booking> orders =
            bookings.filter((key, booking) -> "order".equals(booking.kind())).groupByKey(Grouped.with(TEXT, json(Booking.class)));
        final KGroupedStream<String, Booking> payments =
            bookings.filter((key, booking) -> "payment".equals(booking.kind())).groupByKey(Grouped.with(TEXT, json(Booking.class)));
        orders
            .<Account>cogroup((customer, order, account) -> new Account(account.orders() + 1, account.due() + order.amount()))
            .cogroup(payments, (customer, payment, account) -> new Account(account.orders(), account.due() - payment.amount()))
            .aggregate(
                () -> new Account(0, 0),
                Materialized.<String, Account, KeyValueStore<Bytes, byte[]>>as("accounts").withKeySerde(TEXT).withValueSerde(json(Account.class)))
            .toStream()
            .to(output, Produced.with(TEXT, json(Account.class)));
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record UserOrder(long id, long order, String user, String kind, long amount) {
    }

    record UserSum(long orders, long total, long last, Long most, String by) {
    }

    record Paid(long order, long payment, long of, String by) {
    }

    /** Every version of bench/migrate/programs.py: "old", or the change. */
    private static KStream<String, UserOrder> byUser(final StreamsBuilder builder, final String input, final String version) {
        final int partitions = version.equals("grow") ? 8 : version.equals("reshard") ? 6 : 4;
        final KStream<String, UserOrder> users = builder.stream(input, Consumed.with(TEXT, json(UserOrder.class)))
            .selectKey((key, order) -> order.user())
            .repartition(Repartitioned.with(TEXT, json(UserOrder.class)).withName("by-user").withNumberOfPartitions(partitions));
        return version.equals("insert") ? users.filter((key, order) -> order.amount() >= 0) : users;
    }

    private static UserSum plus(final UserOrder order, final UserSum sum, final String version) {
        final Long most = !version.equals("field") ? null : sum.most() == null ? order.amount() : Math.max(sum.most(), order.amount());
        final String by = version.equals("old") ? "old" : "new";
        return new UserSum(sum.orders() + 1, sum.total() + order.amount(), order.id(), most, by);
    }

    private static void sums(final StreamsBuilder builder, final String input, final String output, final String version) {
        byUser(builder, input, version)
            .groupByKey(Grouped.with(TEXT, json(UserOrder.class)))
            .aggregate(
                () -> new UserSum(0, 0, 0, null, ""),
                (user, order, sum) -> plus(order, sum, version),
                Materialized.<String, UserSum, KeyValueStore<Bytes, byte[]>>as(version.equals("rename") ? "totals" : "sums")
                    .withKeySerde(TEXT).withValueSerde(json(UserSum.class)).withCachingDisabled())
            .toStream()
            .to(output, Produced.with(TEXT, json(UserSum.class)));
    }

    private static void joined(final StreamsBuilder builder, final String input, final String output, final String version) {
        final Duration window = Duration.ofSeconds(30);
        final Duration hour = Duration.ofHours(1);
        final boolean renamed = version.equals("rename");
        final String by = version.equals("old") ? "old" : "new";
        final KStream<String, UserOrder> users = byUser(builder, input, version);
        users.groupByKey(Grouped.with(TEXT, json(UserOrder.class)))
            .windowedBy(TimeWindows.ofSizeAndGrace(window, hour))
            .aggregate(
                () -> new UserSum(0, 0, 0, null, ""),
                (user, order, sum) -> plus(order, sum, version),
                Materialized.<String, UserSum, WindowStore<Bytes, byte[]>>as(renamed ? "spans" : "windows")
                    .withKeySerde(TEXT).withValueSerde(json(UserSum.class)).withCachingDisabled())
            .toStream()
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, window.toMillis()), json(UserSum.class)));
        users.filter((key, order) -> order.kind().equals("order"))
            .join(
                users.filter((key, order) -> order.kind().equals("payment")),
                (order, payment) -> new Paid(order.id(), payment.id(), payment.order(), by),
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(3), hour),
                StreamJoined.with(TEXT, json(UserOrder.class), json(UserOrder.class)).withStoreName(renamed ? "matches" : "pairs"))
            .to(output + "-pairs", Produced.with(TEXT, json(Paid.class)));
    }

    /** Readers and writers of one type each, made once: Jackson's fast way. A null is a null, as in Kafka's own serdes. */
    static <T> Serde<T> json(final Class<T> type) {
        final ObjectMapper mapper = new ObjectMapper();
        final ObjectReader reader = mapper.readerFor(type);
        final ObjectWriter writer = mapper.writerFor(type);
        return Serdes.serdeFrom(
            (topic, value) -> {
                try {
                    return value == null ? null : writer.writeValueAsBytes(value);
                } catch (final IOException exception) {
                    throw new SerializationException(exception);
                }
            },
            (topic, bytes) -> {
                try {
                    return bytes == null ? null : reader.readValue(bytes);
                } catch (final IOException exception) {
                    throw new SerializationException(exception);
                }
            });
    }
}
