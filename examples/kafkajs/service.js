// A web service with kafkajs: what is posted is produced, what is consumed is streamed.
//
//     cd examples/kafkajs && npm install
//     node service.js 127.0.0.1:9092,127.0.0.1:9093 messages 8080
//     curl -N http://127.0.0.1:8080/records                       # server-sent events, from now on
//     curl -d hello 'http://127.0.0.1:8080/records?key=greeting'  # {"partition":0,"offset":"0"}
//
// A browser reads the stream with `new EventSource("/records")`. The answer to a post comes once a
// majority of the replicas has the record on disk. On SIGTERM, or Ctrl-C, the service ends.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import kafkajs from "kafkajs";

const { Kafka, Partitioners, logLevel } = kafkajs;
const VALUE_BYTES_MAX = 1024 * 1024;
const UNREAD_BYTES_MAX = 1024 * 1024; // a reader that is slower than that is disconnected
const CONNECTIONS_MAX = 1000;
const WAIT_MS = 500; // how long a broker waits for more records

const [servers, topic, port] = process.argv.slice(2);
if (port === undefined) {
  console.error("usage: node service.js HOST:PORT,... TOPIC HTTP-PORT");
  process.exit(2);
}
const kafka = new Kafka({
  clientId: "records-over-http",
  brokers: servers.split(","),
  logLevel: logLevel.ERROR,
});
const admin = kafka.admin();
const producer = kafka.producer({
  createPartitioner: Partitioners.DefaultPartitioner,
  idempotent: true, // what is sent again after a lost answer is stored once
  maxInFlightRequests: 1,
});
// A group of its own: each process of this service streams all records, to its own readers.
const groupId = `records-over-http-${randomUUID()}`;
const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: WAIT_MS });
const readers = new Set();

class TooLarge extends Error {}

async function bodyOf(request) {
  const parts = [];
  let size = 0;
  for await (const part of request) {
    size += part.length;
    if (size > VALUE_BYTES_MAX) throw new TooLarge(`at most ${VALUE_BYTES_MAX} bytes, please`);
    parts.push(part);
  }
  return Buffer.concat(parts);
}

async function post(request, response, key) {
  const value = await bodyOf(request);
  const [stored] = await producer.send({ topic, acks: -1, messages: [{ key, value }] });
  answer(response, 201, { partition: stored.partition, offset: stored.baseOffset });
}

function stream(request, response) {
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
  response.write(": records from now on\n\n");
  readers.add(response);
  response.on("close", () => readers.delete(response));
}

function answer(response, status, content) {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(content) + "\n");
}

async function handle(request, response) {
  const url = new URL(request.url, "http://service");
  if (url.pathname !== "/records") return answer(response, 404, { error: "there is /records only" });
  if (request.method === "GET") return stream(request, response);
  if (request.method === "POST") return post(request, response, url.searchParams.get("key"));
  return answer(response, 405, { error: "GET or POST, please" });
}

const web = createServer((request, response) => {
  handle(request, response).catch((error) => {
    if (response.headersSent) return response.destroy();
    response.setHeader("connection", "close"); // the rest of a large body is not read
    answer(response, error instanceof TooLarge ? 413 : 503, { error: error.message });
  });
});

async function show({ partition, message }) {
  const { offset, timestamp } = message;
  const [key, value] = [message.key, message.value].map((bytes) => bytes?.toString() ?? null);
  const data = JSON.stringify({ partition, offset, timestamp, key, value });
  for (const reader of readers) {
    reader.write(`id: ${partition}-${offset}\ndata: ${data}\n\n`);
    if (reader.writableLength > UNREAD_BYTES_MAX) reader.destroy();
  }
}

async function end() {
  web.close();
  for (const reader of readers) reader.end();
  await consumer.disconnect();
  await producer.disconnect();
  await admin.deleteGroups([groupId]);
  await admin.disconnect();
}

await Promise.all([admin.connect(), producer.connect(), consumer.connect()]);
if (!(await admin.listTopics()).includes(topic)) await admin.createTopics({ topics: [{ topic }] });
await consumer.subscribe({ topic });
consumer.on(consumer.events.CRASH, ({ payload }) => {
  if (payload.restart) return; // kafkajs goes on by itself
  console.error(`the consumer ended: ${payload.error.message}`);
  process.exit(1);
});
const reads = new Promise((resolve) => consumer.on(consumer.events.FETCH, resolve));
await consumer.run({ eachMessage: show });
await reads; // it knows from where on it reads
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, end);
web.maxConnections = CONNECTIONS_MAX;
web.listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${web.address().port}/records`));
