import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.ResourceNotFoundException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java client, driven by arguments: {@code Client <bootstrap> <scenario> <unique name>}. Each scenario checks its own claims and ends with
 * "ok"; a failed claim is an exception. One program for all scenarios, because starting a JVM is the slow part.
 */
public final class Client {
    private static final Duration POLL = Duration.ofMillis(200);
    private final String bootstrap;
    private final String name;

    private Client(String bootstrap, String name) {
        this.bootstrap = bootstrap;
        this.name = name;
    }

    public static void main(String[] arguments) throws Exception {
        for (String scenario : arguments[1].split(",")) {
            new Client(arguments[0], arguments[2] + "-" + scenario).run(scenario);
            System.out.println(scenario + " ok");
        }
    }

    private void run(String scenario) throws Exception {
        switch (scenario) {
            case "records" -> records();
            case "codecs" -> codecs();
            case "eager" -> groups("classic", "org.apache.kafka.clients.consumer.RangeAssignor");
            case "cooperative" -> groups("classic", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            case "consumer" -> groups("consumer", "");
            case "transactions" -> transactions();
            case "fencing" -> fencing();
            case "exactlyonce" -> exactlyOnce();
            case "admin" -> admin();
            case "positions" -> positions();
            case "security" -> security();
            default -> throw new IllegalArgumentException("unknown scenario " + scenario);
        }
    }

    // ---- clients ----

    private Properties properties(String... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        for (int i = 0; i < pairs.length; i += 2) {
            properties.put(pairs[i], pairs[i + 1]);
        }
        return properties;
    }

    private KafkaProducer<String, String> producer(String... pairs) {
        return new KafkaProducer<>(properties(pairs));
    }

    private KafkaConsumer<String, String> consumer(String group, String... pairs) {
        Properties properties = properties("auto.offset.reset", "earliest", "enable.auto.commit", "false", "group.id", group);
        properties.putAll(properties(pairs));
        return new KafkaConsumer<>(properties);
    }

    private Admin adminClient() {
        return Admin.create(properties());
    }

    private String topic(String what, int partitions) throws Exception {
        String topic = name + "-" + what;
        try (Admin admin = adminClient()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        }
        return topic;
    }

    private static void check(boolean holds, String claim) {
        if (!holds) {
            throw new AssertionError(claim);
        }
    }

    private static List<ConsumerRecord<String, String>> read(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (found.size() < count) {
            check(System.nanoTime() < deadline, found.size() + " of " + count + " records in 60 s");
            consumer.poll(POLL).forEach(found::add);
        }
        check(found.size() == count, found.size() + " records, not " + count);
        return found;
    }

    private static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).toList();
    }

    // ---- scenarios ----

    /** Keys, values, headers and timestamps come back as they went in; the producer is idempotent, as it is by default. */
    private void records() throws Exception {
        String topic = topic("topic", 1);
        try (var producer = producer()) {
            var record = new ProducerRecord<>(topic, 0, 1_600_000_000_123L, "key", "value");
            record.headers().add("one", "1".getBytes(StandardCharsets.UTF_8)).add("null", null);
            check(producer.send(record).get().offset() == 0, "the first offset is 0");
            producer.send(new ProducerRecord<>(topic, "tombstone", null)).get();
        }
        try (var consumer = consumer(name)) {
            consumer.subscribe(List.of(topic));
            var records = read(consumer, 2);
            var first = records.get(0);
            check(first.key().equals("key") && first.value().equals("value"), "key and value");
            check(first.timestamp() == 1_600_000_000_123L, "timestamp");
            Header[] headers = first.headers().toArray();
            check(headers.length == 2 && headers[0].key().equals("one") && headers[1].value() == null, "headers");
            check(records.get(1).value() == null, "a tombstone");
        }
    }

    private void codecs() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            String topic = topic(codec, 1);
            List<String> expected = new ArrayList<>();
            try (var producer = producer("compression.type", codec, "linger.ms", "20")) {
                for (int i = 0; i < 300; i++) {
                    expected.add(codec + " " + i + " " + "x".repeat(100));
                    producer.send(new ProducerRecord<>(topic, expected.get(i)));
                }
            }
            try (var consumer = consumer(name + codec)) {
                consumer.subscribe(List.of(topic));
                check(values(read(consumer, 300)).equals(expected), "the same 300 values with " + codec);
            }
        }
    }

    /** Remembers what it owns and that it was never told of a partition it already had. */
    private static final class Owner implements ConsumerRebalanceListener {
        final Set<TopicPartition> owned = new HashSet<>();

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            check(Collections.disjoint(owned, partitions), "assigned twice: " + partitions);
            owned.addAll(partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            check(owned.containsAll(partitions), "revoked but not owned: " + partitions);
            owned.removeAll(partitions);
        }
    }

    private void groups(String protocol, String assignor) throws Exception {
        String topic = topic("topic", 6);
        String[] settings = protocol.equals("consumer")
            ? new String[] {"group.protocol", "consumer"}
            : new String[] {"partition.assignment.strategy", assignor, "heartbeat.interval.ms", "300", "session.timeout.ms", "45000"};
        Owner one = new Owner();
        Owner two = new Owner();
        var first = consumer(name, settings);
        try (var second = consumer(name, settings)) {
            first.subscribe(List.of(topic), one);
            settle(Map.of(first, one), 6, 6);
            second.subscribe(List.of(topic), two);
            settle(Map.of(first, one, second, two), 6, 3);
            first.close();
            settle(Map.of(second, two), 6, 6);
        }
    }

    private static void settle(Map<KafkaConsumer<String, String>, Owner> members, int partitions, int each) {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (true) {
            members.keySet().forEach(member -> member.poll(Duration.ofMillis(50)));
            Set<TopicPartition> all = new HashSet<>();
            members.values().forEach(owner -> all.addAll(owner.owned));
            if (all.size() == partitions && members.values().stream().allMatch(owner -> owner.owned.size() == each)) {
                return;
            }
            check(System.nanoTime() < deadline, "not settled in 60 s: " + members.values().stream().map(o -> o.owned).toList());
        }
    }

    private void transactions() throws Exception {
        String topic = topic("topic", 2);
        try (var producer = producer("transactional.id", name)) {
            producer.initTransactions();
            for (String value : List.of("kept", "dropped", "kept too")) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, value));
                producer.send(new ProducerRecord<>(topic, 1, null, value));
                if (value.equals("dropped")) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        try (var consumer = consumer(name, "isolation.level", "read_committed")) {
            consumer.subscribe(List.of(topic));
            var found = new ArrayList<>(values(read(consumer, 4)));
            found.sort(null);
            check(found.equals(List.of("kept", "kept", "kept too", "kept too")), "only what was committed: " + found);
            check(consumer.poll(POLL).isEmpty(), "and nothing more");
        }
    }

    private void fencing() throws Exception {
        String topic = topic("topic", 1);
        var old = producer("transactional.id", name);
        old.initTransactions();
        old.beginTransaction();
        old.send(new ProducerRecord<>(topic, "zombie")).get();
        try (var fresh = producer("transactional.id", name)) {
            fresh.initTransactions();
            try {
                old.commitTransaction();
                throw new AssertionError("the old producer committed");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                old.close(Duration.ZERO);
            }
            fresh.beginTransaction();
            fresh.send(new ProducerRecord<>(topic, "alive"));
            fresh.commitTransaction();
        }
        try (var consumer = consumer(name, "isolation.level", "read_committed")) {
            consumer.subscribe(List.of(topic));
            check(values(read(consumer, 1)).equals(List.of("alive")), "the zombie's record is gone");
        }
    }

    /** Read, change, write and commit the position in one transaction; an aborted round is done again and leaves no trace. */
    private void exactlyOnce() throws Exception {
        String source = topic("source", 1);
        String target = topic("target", 1);
        try (var producer = producer()) {
            List.of("a", "b", "c", "d").forEach(value -> producer.send(new ProducerRecord<>(source, value)));
        }
        TopicPartition partition = new TopicPartition(source, 0);
        try (var consumer = consumer(name, "isolation.level", "read_committed", "max.poll.records", "2");
             var producer = producer("transactional.id", name)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            boolean aborted = false;
            for (int done = 0; done < 4; ) {
                var records = read(consumer, 2);
                producer.beginTransaction();
                records.forEach(record -> producer.send(new ProducerRecord<>(target, record.value().toUpperCase())));
                long next = records.get(1).offset() + 1;
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(next)), consumer.groupMetadata());
                if (done == 2 && !aborted) {
                    producer.abortTransaction();
                    aborted = true;
                    consumer.seek(partition, 2);
                } else {
                    producer.commitTransaction();
                    done += 2;
                }
            }
            check(consumer.committed(Set.of(partition)).get(partition).offset() == 4, "the position is committed");
        }
        try (var consumer = consumer(name + "-check", "isolation.level", "read_committed")) {
            consumer.subscribe(List.of(target));
            check(values(read(consumer, 4)).equals(List.of("A", "B", "C", "D")), "each result once");
            check(consumer.poll(POLL).isEmpty(), "and nothing more");
        }
    }

    private void positions() throws Exception {
        String topic = topic("topic", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var producer = producer()) {
            for (int i = 0; i < 10; i++) {
                producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + i * 1000, null, "" + i));
            }
        }
        try (var consumer = consumer(name)) {
            consumer.assign(List.of(partition));
            check(consumer.endOffsets(List.of(partition)).get(partition) == 10, "end");
            check(consumer.beginningOffsets(List.of(partition)).get(partition) == 0, "beginning");
            var found = consumer.offsetsForTimes(Map.of(partition, 1_700_000_004_500L)).get(partition);
            check(found.offset() == 5 && found.timestamp() == 1_700_000_005_000L, "by time: " + found);
            consumer.seek(partition, 7);
            check(values(read(consumer, 3)).equals(List.of("7", "8", "9")), "after a seek");
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(8, Optional.of(0), "note")));
        }
        try (var consumer = consumer(name)) {
            consumer.assign(List.of(partition));
            check(consumer.committed(Set.of(partition)).get(partition).metadata().equals("note"), "metadata");
            check(values(read(consumer, 2)).equals(List.of("8", "9")), "goes on where it committed");
        }
    }

    private void admin() throws Exception {
        String topic = topic("topic", 2);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = adminClient(); var producer = producer()) {
            for (int i = 0; i < 5; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, "" + i)).get();
            }
            check(admin.describeCluster().nodes().get().size() == 1, "one node");
            check(admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 2, "partitions");
            try {
                admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
                throw new AssertionError("made twice");
            } catch (ExecutionException expected) {
                check(expected.getCause() instanceof TopicExistsException, "it exists: " + expected.getCause());
            }
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            var change = new AlterConfigOp(new ConfigEntry("retention.ms", "7000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            waitFor(() -> admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value().equals("7000"));
            Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            check(config.get("cleanup.policy").isDefault(), "cleanup.policy is a default");
            check(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(3))).all().get() == null, "deleted");
            check(admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).all().get().get(partition).offset() == 3, "earliest");
            check(admin.listOffsets(Map.of(partition, OffsetSpec.latest())).all().get().get(partition).offset() == 5, "latest");
            administerGroup(admin, topic, partition);
            check(!admin.describeProducers(List.of(partition)).all().get().get(partition).activeProducers().isEmpty(), "producers");
            check(!admin.describeLogDirs(List.of(admin.describeCluster().controller().get().id())).allDescriptions().get().isEmpty(), "log dirs");
            admin.deleteTopics(List.of(topic)).all().get();
            waitFor(() -> !admin.listTopics().names().get().contains(topic));
        }
    }

    private void administerGroup(Admin admin, String topic, TopicPartition partition) throws Exception {
        try (var consumer = consumer(name)) {
            consumer.subscribe(List.of(topic));
            read(consumer, 2);
            consumer.commitSync();
            ConsumerGroupDescription described = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
            check(described.members().size() == 1, "one member");
            check(described.groupState().toString().equals("Stable"), "stable");
        }
        var offsets = admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get();
        check(offsets.get(partition).offset() == 5, "committed: " + offsets);
        admin.alterConsumerGroupOffsets(name, Map.of(partition, new OffsetAndMetadata(4))).all().get();
        admin.deleteConsumerGroups(List.of(name)).all().get();
        check(admin.listGroups().all().get().stream().noneMatch(group -> group.groupId().equals(name)), "the group is gone");
    }

    /** Where no access control is configured; MirrorMaker 2 looks for exactly this exception. */
    private void security() throws Exception {
        try (Admin admin = adminClient()) {
            fails(admin.describeAcls(AclBindingFilter.ANY).values(), SecurityDisabledException.class);
            fails(admin.deleteAcls(List.of(AclBindingFilter.ANY)).all(), SecurityDisabledException.class);
            check(admin.describeUserScramCredentials().users().get().isEmpty(), "no users");
            fails(admin.describeUserScramCredentials(List.of("nobody")).description("nobody"), ResourceNotFoundException.class);
            check(admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().isEmpty(), "no quotas");
        }
    }

    private static void fails(KafkaFuture<?> future, Class<? extends Exception> expected) throws Exception {
        try {
            future.get();
        } catch (ExecutionException failed) {
            check(expected.isInstance(failed.getCause()), "another reason: " + failed.getCause());
            return;
        }
        throw new AssertionError("no " + expected.getSimpleName());
    }

    private interface Claim {
        boolean holds() throws Exception;
    }

    private static void waitFor(Claim claim) throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (!claim.holds()) {
            check(System.nanoTime() < deadline, "it did not come about");
            Thread.sleep(50);
        }
    }
}
