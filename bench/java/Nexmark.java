import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.function.Function;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/** NEXMark's q0 to q5, q7 and q8 in Kafka Streams; their twins are in examples/nexmark.py. */
final class Nexmark {
    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<Long> LONG = Serdes.Long();
    private static final Duration LATE = Duration.ofHours(1);
    private static final Duration TEN_SECONDS = Duration.ofSeconds(10);
    private static final TimeWindows WINDOWS = TimeWindows.ofSizeAndGrace(TEN_SECONDS, LATE);
    private static final Serde<Windowed<Long>> WINDOWED = WindowedSerdes.timeWindowedSerdeFrom(Long.class, TEN_SECONDS.toMillis());
    private static final Set<String> STATES = Set.of("OR", "ID", "CA");

    private Nexmark() {
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Event(int event_type, Person person, Auction auction, Bid bid) {
    }

    record Person(
        long id, String name, String emailAddress, String creditCard, String city, String state, long dateTime, String extra) {
    }

    record Auction(
        long id, String itemName, String description, long initialBid, long reserve, long dateTime, long expires, long seller, long category,
        String extra) {
    }

    record Bid(long auction, long bidder, long price, String channel, String url, long dateTime, String extra) {
    }

    record PlainBid(long auction, long bidder, long price, long dateTime, String extra) {
        static PlainBid of(final Bid bid) {
            return new PlainBid(bid.auction(), bid.bidder(), bid.price(), bid.dateTime(), bid.extra());
        }

        boolean isBetterThan(final PlainBid other) {
            return price > other.price || price == other.price && dateTime < other.dateTime;
        }
    }

    static void build(final String query, final StreamsBuilder builder, final String input, final String output) {
        final KStream<String, Event> events = builder.stream(input, Consumed.with(TEXT, Programs.json(Event.class)));
        switch (query) {
            case "q0" -> passThrough(events, output);
            case "q1" -> currency(events, output);
            case "q2" -> selection(events, output);
            case "q3" -> localItems(events, output);
            case "q4" -> averagePrices(events, output);
            case "q5" -> hotItems(events, output);
            case "q7" -> highestBids(events, output);
            case "q8" -> newUsers(events, output);
            default -> throw new IllegalArgumentException("No such query: " + query);
        }
    }

    private static <V> KStream<String, V> of(final KStream<String, Event> events, final int type, final Function<Event, V> part) {
        return events.filter((key, event) -> event.event_type() == type).mapValues(part::apply);
    }

    private static KStream<String, Person> persons(final KStream<String, Event> events) {
        return of(events, 0, Event::person);
    }

    private static KStream<String, Auction> auctions(final KStream<String, Event> events) {
        return of(events, 1, Event::auction);
    }

    private static KStream<String, Bid> bids(final KStream<String, Event> events) {
        return of(events, 2, Event::bid);
    }

    private static void passThrough(final KStream<String, Event> events, final String output) {
        bids(events).mapValues(PlainBid::of).to(output, Produced.with(TEXT, Programs.json(PlainBid.class)));
    }

    record Euros(long auction, long bidder, double price, long dateTime, String extra) {
    }

    private static void currency(final KStream<String, Event> events, final String output) {
        bids(events)
            .mapValues(bid -> new Euros(bid.auction(), bid.bidder(), bid.price() * 0.908, bid.dateTime(), bid.extra()))
            .to(output, Produced.with(TEXT, Programs.json(Euros.class)));
    }

    record Price(long auction, long price) {
    }

    private static void selection(final KStream<String, Event> events, final String output) {
        bids(events)
            .filter((key, bid) -> bid.auction() % 123 == 0)
            .mapValues(bid -> new Price(bid.auction(), bid.price()))
            .to(output, Produced.with(TEXT, Programs.json(Price.class)));
    }

    record Seller(long id, String name, String city, String state) {
        static Seller of(final Person person) {
            return new Seller(person.id(), person.name(), person.city(), person.state());
        }
    }

    record Item(long id, long seller, long category) {
        static Item of(final Auction auction) {
            return new Item(auction.id(), auction.seller(), auction.category());
        }
    }

    record LocalItem(String name, String city, String state, long id) {
    }

    private static void localItems(final KStream<String, Event> events, final String output) {
        final KTable<Long, Seller> persons = persons(events)
            .mapValues(Seller::of)
            .filter((key, person) -> STATES.contains(person.state()))
            .selectKey((key, person) -> person.id())
            .toTable(kept("persons", Seller.class));
        final KTable<Long, Item> auctions = auctions(events)
            .mapValues(Item::of)
            .filter((key, auction) -> auction.category() == 10)
            .selectKey((key, auction) -> auction.id())
            .toTable(kept("auctions", Item.class));
        auctions
            .join(
                persons,
                Item::seller,
                (auction, person) -> new LocalItem(person.name(), person.city(), person.state(), auction.id()),
                TableJoined.as("sellers"),
                Materialized.<Long, LocalItem, KeyValueStore<Bytes, byte[]>>with(LONG, Programs.json(LocalItem.class)))
            .toStream()
            .to(output, Produced.with(LONG, Programs.json(LocalItem.class)));
    }

    record OpenAuction(long id, long expires, long category) {
        static OpenAuction of(final Auction auction) {
            return new OpenAuction(auction.id(), auction.expires(), auction.category());
        }
    }

    record TimedPrice(long auction, long price, long dateTime) {
        static TimedPrice of(final Bid bid) {
            return new TimedPrice(bid.auction(), bid.price(), bid.dateTime());
        }
    }

    record PriceInTime(long category, long price, boolean inTime) {
    }

    record FinalPrice(long category, long price) {
    }

    record Prices(long count, long sum) {
    }

    record CategoryPrice(long id, @JsonProperty("final") long price) {
    }

    private static void averagePrices(final KStream<String, Event> events, final String output) {
        auctions(events)
            .mapValues(OpenAuction::of)
            .selectKey((key, auction) -> auction.id())
            .join(
                bids(events).mapValues(TimedPrice::of).selectKey((key, bid) -> bid.auction()),
                (auction, bid) -> new PriceInTime(auction.category(), bid.price(), bid.dateTime() <= auction.expires()),
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ZERO, LATE).after(TEN_SECONDS),
                StreamJoined.with(LONG, Programs.json(OpenAuction.class), Programs.json(TimedPrice.class))
                    .withName("by-auction")
                    .withStoreName("bids-in-time"))
            .filter((id, price) -> price.inTime())
            .groupByKey(Grouped.with(LONG, Programs.json(PriceInTime.class)))
            .aggregate(
                () -> new FinalPrice(0, 0),
                (id, price, best) -> new FinalPrice(price.category(), Math.max(best.price(), price.price())),
                kept("final-prices", FinalPrice.class))
            .groupBy((id, best) -> KeyValue.pair(best.category(), best.price()), Grouped.with("by-category", LONG, LONG))
            .aggregate(
                () -> new Prices(0, 0),
                (category, price, prices) -> new Prices(prices.count() + 1, prices.sum() + price),
                (category, price, prices) -> new Prices(prices.count() - 1, prices.sum() - price),
                kept("categories", Prices.class))
            .toStream()
            .mapValues((category, prices) -> new CategoryPrice(category, prices.count() == 0 ? 0 : prices.sum() / prices.count()))
            .to(output, Produced.with(LONG, Programs.json(CategoryPrice.class)));
    }

    record Counted(long auction, long num) {
    }

    record Hottest(long num, List<Long> auctions) {
        Hottest with(final Counted counted) {
            if (counted.num() > num) {
                return new Hottest(counted.num(), List.of(counted.auction()));
            }
            if (counted.num() < num || auctions.contains(counted.auction())) {
                return this;
            }
            final List<Long> more = new ArrayList<>(auctions);
            more.add(counted.auction());
            Collections.sort(more);
            return new Hottest(num, more);
        }
    }

    private static void hotItems(final KStream<String, Event> events, final String output) {
        bids(events)
            .mapValues(Bid::auction)
            .groupBy((key, auction) -> auction, Grouped.with("by-auction", LONG, LONG))
            .windowedBy(TimeWindows.ofSizeAndGrace(TEN_SECONDS, LATE).advanceBy(Duration.ofSeconds(2)))
            .count(Materialized.<Long, Long, WindowStore<Bytes, byte[]>>as("bids-of-auctions").withKeySerde(LONG))
            .toStream()
            .map((auction, num) -> KeyValue.pair(auction.window().start(), new Counted(auction.key(), num)))
            .groupByKey(Grouped.with("by-window", LONG, Programs.json(Counted.class)))
            .aggregate(() -> new Hottest(0, List.of()), (start, counted, hottest) -> hottest.with(counted), kept("hottest", Hottest.class))
            .toStream()
            .to(output, Produced.with(LONG, Programs.json(Hottest.class)));
    }

    private static void highestBids(final KStream<String, Event> events, final String output) {
        final Serde<PlainBid> plain = Programs.json(PlainBid.class);
        bids(events)
            .mapValues(PlainBid::of)
            .groupBy((key, bid) -> 0L, Grouped.with("all", LONG, plain))
            .windowedBy(WINDOWS)
            .reduce(
                (best, bid) -> bid.isBetterThan(best) ? bid : best,
                Materialized.<Long, PlainBid, WindowStore<Bytes, byte[]>>as("highest").withKeySerde(LONG).withValueSerde(plain))
            .toStream()
            .to(output, Produced.with(WINDOWED, plain));
    }

    record Named(long id, String name) {
        static Named of(final Person person) {
            return new Named(person.id(), person.name());
        }
    }

    record NewUser(long id, String name, long stime) {
    }

    private static void newUsers(final KStream<String, Event> events, final String output) {
        final KTable<Windowed<Long>, String> registered = persons(events)
            .mapValues(Named::of)
            .groupBy((key, person) -> person.id(), Grouped.with("persons", LONG, Programs.json(Named.class)))
            .windowedBy(WINDOWS)
            .aggregate(
                () -> "",
                (id, person, before) -> person.name(),
                Materialized.<Long, String, WindowStore<Bytes, byte[]>>as("registered").withKeySerde(LONG).withValueSerde(TEXT));
        final KTable<Windowed<Long>, Long> opened = auctions(events)
            .mapValues(Auction::seller)
            .groupBy((key, seller) -> seller, Grouped.with("sellers", LONG, LONG))
            .windowedBy(WINDOWS)
            .count(Materialized.<Long, Long, WindowStore<Bytes, byte[]>>as("opened").withKeySerde(LONG));
        registered
            .join(opened, (name, auctions) -> name)
            .toStream()
            .mapValues((user, name) -> new NewUser(user.key(), name, user.window().start()))
            .to(output, Produced.with(WINDOWED, Programs.json(NewUser.class)));
    }

    private static <V> Materialized<Long, V, KeyValueStore<Bytes, byte[]>> kept(final String store, final Class<V> type) {
        return Materialized.<Long, V, KeyValueStore<Bytes, byte[]>>as(store).withKeySerde(LONG).withValueSerde(Programs.json(type));
    }
}
