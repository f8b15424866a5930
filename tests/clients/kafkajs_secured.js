// kafkajs at a secure node, for test_kafkajs_secured.py: node kafkajs_secured.js PACKAGE. What it is given comes as JSON
// on standard input: brokers, files of certificates, a login, a topic and a value. It produces the value and reads it
// back by a consumer group; the result is one line of JSON: "value", or "error", what kafkajs says.

const fs = require("fs");
const kafkajs = require(process.argv[2]);

const given = JSON.parse(fs.readFileSync(0, "utf8"));
const said = [];
const read = (path) => fs.readFileSync(path, "utf8");

function settings() {
  const found = {
    clientId: "kafkajs",
    brokers: [given.broker],
    connectionTimeout: 60_000, // a busy machine takes longer for a handshake than the default, a second
    authenticationTimeout: 60_000,
    retry: { retries: 0 },
    logLevel: kafkajs.logLevel.WARN,
    logCreator: () => ({ log }) => said.push(`${log.message}: ${log.error}`),
  };
  if (given.ca) {
    found.ssl = { ca: [read(given.ca)] };
    if (given.certificate) {
      Object.assign(found.ssl, { cert: read(given.certificate), key: read(given.key) });
    }
  }
  if (given.token) {
    found.sasl = { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: given.token }) };
  } else if (given.mechanism) {
    found.sasl = { mechanism: given.mechanism.toLowerCase(), username: given.user, password: given.password };
  }
  return found;
}

async function passed() {
  const kafka = new kafkajs.Kafka(settings());
  const producer = kafka.producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner });
  await producer.connect();
  const [at] = await producer.send({ topic: given.topic, acks: -1, messages: [{ value: given.value }] });
  await producer.disconnect();
  // a group joins anew when coordinators change: that is what retries are for
  const consumer = new kafkajs.Kafka({ ...settings(), retry: { retries: 10 } }).consumer({ groupId: given.group });
  await consumer.connect();
  await consumer.subscribe({ topic: given.topic, fromBeginning: true });
  const value = await new Promise((resolve) =>
    consumer.run({
      eachMessage: async ({ message }) => {
        if (message.offset === at.baseOffset) resolve(message.value.toString());
      },
    }),
  );
  await consumer.disconnect();
  return value;
}

passed()
  .then((value) => console.log(JSON.stringify({ value })))
  .catch((error) => console.log(JSON.stringify({ error: [`${error}`, ...said].join("\n") })))
  .finally(() => process.exit());
