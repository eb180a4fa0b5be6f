// RabbitMQ's Java client doing what its users do; prints one line per scenario that went as expected.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;

public class AmqpClient {
    static final long WAIT_S = 30;

    static void check(boolean held, String what) {
        if (!held) throw new AssertionError(what);
    }

    static <T> T next(BlockingQueue<T> queue) throws InterruptedException {
        T found = queue.poll(WAIT_S, TimeUnit.SECONDS);
        check(found != null, "nothing came within " + WAIT_S + " s");
        return found;
    }

    static void confirmed(Connection connection) throws Exception {
        try (Channel channel = connection.createChannel()) {
            channel.queueDeclare("java-quorum", true, false, false, Map.of("x-queue-type", "quorum"));
            channel.confirmSelect();
            for (int number = 0; number < 200; number++) {
                channel.basicPublish("", "java-quorum", MessageProperties.PERSISTENT_BASIC, ("" + number).getBytes());
            }
            channel.waitForConfirmsOrDie(WAIT_S * 1000);
            check(channel.messageCount("java-quorum") == 200, "200 messages are ready");
            BlockingQueue<String> bodies = new ArrayBlockingQueue<>(1000);
            channel.basicQos(20);
            String tag = channel.basicConsume("java-quorum", false, (consumer, delivery) -> {
                bodies.add(new String(delivery.getBody()));
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            }, consumer -> {});
            for (int number = 0; number < 200; number++) {
                check(next(bodies).equals("" + number), "in order");
            }
            channel.basicCancel(tag);
            channel.queueDelete("java-quorum");
        }
        System.out.println("confirmed ok");
    }

    static void returned(Connection connection) throws Exception {
        try (Channel channel = connection.createChannel()) {
            BlockingQueue<String> back = new ArrayBlockingQueue<>(10);
            channel.addReturnListener(message -> back.add(message.getReplyCode() + " " + message.getRoutingKey()));
            channel.basicPublish("amq.direct", "nowhere", true, null, "x".getBytes());
            check(next(back).equals("312 nowhere"), "returned");
            channel.exchangeDeclare("java-source", BuiltinExchangeType.TOPIC, false, true, null);
            channel.exchangeDeclare("java-target", BuiltinExchangeType.FANOUT, false, true, null);
            channel.exchangeBind("java-target", "java-source", "a.#");
            String queue = channel.queueDeclare().getQueue();
            channel.queueBind(queue, "java-target", "");
            channel.basicPublish("java-source", "a.b.c", null, "through".getBytes());
            channel.basicPublish("java-source", "b", null, "past".getBytes());
            GetResponse found = null;
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
            while (found == null && System.nanoTime() < end) found = channel.basicGet(queue, false);
            check(found != null && new String(found.getBody()).equals("through"), "exchange to exchange");
            check(found.getMessageCount() == 0, "one only");
            channel.basicReject(found.getEnvelope().getDeliveryTag(), true);
            check(channel.basicGet(queue, true).getEnvelope().isRedeliver(), "given back");
        }
        System.out.println("returned ok");
    }

    static void replies(Connection connection) throws Exception {
        try (Channel server = connection.createChannel(); Channel client = connection.createChannel()) {
            String requests = server.queueDeclare().getQueue();
            server.basicConsume(requests, true, (consumer, delivery) -> {
                AMQP.BasicProperties same = new AMQP.BasicProperties.Builder()
                    .correlationId(delivery.getProperties().getCorrelationId()).build();
                String answer = "re: " + new String(delivery.getBody());
                server.basicPublish("", delivery.getProperties().getReplyTo(), same, answer.getBytes());
            }, consumer -> {});
            BlockingQueue<String> answers = new ArrayBlockingQueue<>(10);
            client.basicConsume("amq.rabbitmq.reply-to", true, (consumer, delivery) ->
                answers.add(delivery.getProperties().getCorrelationId() + " " + new String(delivery.getBody())),
                consumer -> {});
            AMQP.BasicProperties ask = new AMQP.BasicProperties.Builder()
                .replyTo("amq.rabbitmq.reply-to").correlationId("7").build();
            client.basicPublish("", requests, ask, "hello".getBytes());
            check(next(answers).equals("7 re: hello"), "answered");
        }
        System.out.println("replies ok");
    }

    static void stream(Connection connection) throws Exception {
        try (Channel channel = connection.createChannel()) {
            channel.queueDeclare("java-stream", true, false, false, Map.of("x-queue-type", "stream"));
            channel.confirmSelect();
            for (int number = 0; number < 50; number++) {
                channel.basicPublish("", "java-stream", null, ("" + number).getBytes());
            }
            channel.waitForConfirmsOrDie(WAIT_S * 1000);
            BlockingQueue<String> seen = new ArrayBlockingQueue<>(100);
            channel.basicQos(10);
            channel.basicConsume("java-stream", false, Map.of("x-stream-offset", 40L), (consumer, delivery) -> {
                seen.add(delivery.getProperties().getHeaders().get("x-stream-offset") + "=" + new String(delivery.getBody()));
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            }, consumer -> {});
            List<String> found = new ArrayList<>();
            for (int number = 40; number < 50; number++) found.add(next(seen));
            check(found.get(0).equals("40=40") && found.get(9).equals("49=49"), "from 40 to 49: " + found);
            channel.queueDelete("java-stream");
        }
        System.out.println("stream ok");
    }

    static void refused(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        try {
            channel.queueDeclarePassive("java-nobody");
            check(false, "a queue that is not there is refused");
        } catch (IOException error) {
            AMQP.Channel.Close close = (AMQP.Channel.Close) ((ShutdownSignalException) error.getCause()).getReason();
            check(close.getReplyCode() == 404, "code " + close.getReplyCode());
        }
        check(connection.isOpen(), "the connection goes on");
        try (Channel transaction = connection.createChannel()) {
            String queue = transaction.queueDeclare().getQueue();
            transaction.txSelect();
            transaction.basicPublish("", queue, null, "never".getBytes());
            transaction.txRollback();
            transaction.basicPublish("", queue, null, "once".getBytes());
            transaction.txCommit();
            check(new String(transaction.basicGet(queue, true).getBody()).equals("once"), "committed");
            check(transaction.basicGet(queue, true) == null, "and nothing else");
        }
        System.out.println("refused ok");
    }

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(arguments[0]));
        factory.setRequestedHeartbeat(5);
        try (Connection connection = factory.newConnection()) {
            confirmed(connection);
            returned(connection);
            replies(connection);
            stream(connection);
            refused(connection);
        }
    }
}
