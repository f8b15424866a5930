// What kafkajs does with a cluster, for test_kafkajs.py: node kafkajs_client.js PACKAGE SERVERS STEP …
// The result is one line of JSON on standard output; "complaints" are warnings and errors that it logged.

const [packageDirectory, servers, step, ...options] = process.argv.slice(2);
const kafkajs = require(packageDirectory);

const complaints = [];
const settings = {
  clientId: "kafkajs",
  brokers: servers.split(","),
  connectionTimeout: 10_000, // by default it complains of a busy machine after a second
  logLevel: kafkajs.logLevel.WARN,
  logCreator: () => ({ namespace, log }) => complaints.push(`${log.message}: ${log.error}`),
};
const kafka = new kafkajs.Kafka(settings);

const steps = { produce, records, pairs, administer };

async function produce(topic, codec, count) {
  const producer = kafka.producer({
    createPartitioner: kafkajs.Partitioners.DefaultPartitioner,
    idempotent: true,
    maxInFlightRequests: 1,
  });
  await producer.connect();
  const messages = Array.from({ length: Number(count) }, (_, number) => ({
    key: `key${number}`,
    value: `value ${number}`,
    headers: { from: "kafkajs" },
    partition: 0,
  }));
  const sent = [];
  for (let first = 0; first < messages.length; first += 100) {
    const [answer] = await producer.send({
      topic,
      acks: -1,
      compression: kafkajs.CompressionTypes[codec],
      messages: messages.slice(first, first + 100),
    });
    sent.push(Number(answer.baseOffset));
  }
  await producer.disconnect();
  return sent;
}

// Writes the number in each line of standard input, "number partition commit" or "number partition abort", to two
// topics in one transaction; prints "number committed", "number aborted" or "number failed" once that has ended.
async function pairs(transactionalId, ...topics) {
  const retry = { initialRetryTime: 100, maxRetryTime: 500, retries: 100 };
  const producer = new kafkajs.Kafka({ ...settings, retry }).producer({
    transactionalId,
    transactionTimeout: 20000,
    idempotent: true,
    maxInFlightRequests: 1,
  });
  await producer.connect();
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    const [number, partition, what] = line.split(" ");
    let outcome = what === "commit" ? "committed" : "aborted";
    let transaction;
    try {
      transaction = await producer.transaction();
      for (const topic of topics) {
        const messages = [{ value: number, partition: Number(partition) }];
        await transaction.send({ topic, acks: -1, messages });
      }
      await transaction[what]();
    } catch (error) {
      outcome = "failed";
      if (transaction && transaction.isActive()) {
        await transaction.abort().catch(() => {});
      }
    }
    process.stdout.write(`${number} ${outcome}\n`);
  }
  await producer.disconnect();
}

// Produces lines of standard input, each "partition value", one after the other, until all are
// acknowledged; prints "offset value" for each. Lines of one partition that wait go together.
async function records(topic) {
  const retry = { initialRetryTime: 100, maxRetryTime: 500, retries: Number.MAX_SAFE_INTEGER };
  const producer = new kafkajs.Kafka({ ...settings, retry }).producer({
    createPartitioner: kafkajs.Partitioners.DefaultPartitioner,
    idempotent: true,
    maxInFlightRequests: 1,
  });
  await producer.connect();
  const waiting = new Map();
  let hasEnded = false;
  let wake = () => {};
  const lines = require("readline").createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    const space = line.indexOf(" ");
    const partition = Number(line.slice(0, space));
    if (!waiting.has(partition)) waiting.set(partition, []);
    waiting.get(partition).push(line.slice(space + 1));
    wake();
  });
  lines.on("close", () => {
    hasEnded = true;
    wake();
  });
  while (!hasEnded || waiting.size) {
    const [next] = waiting;
    if (next === undefined) {
      await new Promise((resolve) => (wake = resolve));
      continue;
    }
    const [partition, values] = next;
    waiting.delete(partition);
    const messages = values.map((value) => ({ value, partition }));
    const [answer] = await producer.send({ topic, acks: -1, messages });
    values.forEach((value, at) => console.log(`${Number(answer.baseOffset) + at} ${value}`));
  }
  await producer.disconnect();
}

// Asks until the answer is true, for at most 30 s: a broker hears of a change after another one.
async function until(ask) {
  const end = Date.now() + 30_000;
  while (!(await ask())) {
    if (Date.now() > end) return false;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return true;
}

async function administer(topic) {
  const admin = kafka.admin();
  const topics = [topic];
  await admin.connect();
  const created = await admin.createTopics({
    topics: [
      {
        topic,
        numPartitions: 2,
        replicationFactor: 3,
        configEntries: [{ name: "retention.ms", value: "3600000" }],
      },
    ],
  });
  const createdAgain = await admin.createTopics({ topics: [{ topic }] });
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  await admin.alterConfigs({
    resources: [
      {
        type: kafkajs.ConfigResourceTypes.TOPIC,
        name: topic,
        configEntries: [{ name: "retention.bytes", value: "1000000" }],
      },
    ],
  });
  const described = await admin.describeConfigs({
    includeSynonyms: false,
    resources: [
      {
        type: kafkajs.ConfigResourceTypes.TOPIC,
        name: topic,
        configNames: ["retention.ms", "retention.bytes"],
      },
    ],
  });
  const cluster = await admin.describeCluster();
  const metadata = await admin.fetchTopicMetadata({ topics });
  const producer = kafka.producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner });
  await producer.connect();
  await producer.send({
    topic,
    messages: [100, 200, 300].map((time) => ({ value: "v", partition: 1, timestamp: `${time}` })),
  });
  await producer.disconnect();
  const offsets = await admin.fetchTopicOffsets(topic);
  const fromTime = await admin.fetchTopicOffsetsByTimestamp(topic, 200);
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 1, offset: "2" }] });
  const offsetsAfterDeletion = await admin.fetchTopicOffsets(topic);
  const listed = await admin.listTopics();
  await admin.deleteTopics({ topics });
  const isGone = await until(async () => !(await admin.listTopics()).includes(topic));
  await admin.disconnect();
  return {
    created,
    createdAgain,
    configs: Object.fromEntries(
      described.resources[0].configEntries.map((one) => [one.configName, one.configValue]),
    ),
    brokers: cluster.brokers.map((one) => `${one.host}:${one.port}`),
    replicas: metadata.topics[0].partitions.map((one) => one.replicas.length),
    offsets,
    fromTime,
    offsetsAfterDeletion,
    isListed: listed.includes(topic),
    isGone,
  };
}

steps[step](...options)
  .then((result) => console.log(JSON.stringify({ result, complaints })))
  .catch((error) => {
    console.error(error, complaints);
    process.exitCode = 1;
  });
