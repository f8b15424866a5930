"""Record batches as other people's clients build them, for tests."""

from aiokafka.record.default_records import DefaultRecordBatchBuilder

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BATCH_SIZE = 1 << 20


def batch_of(
    timestamps,
    *,
    codec=0,
    producer_id=-1,
    epoch=-1,
    sequence=-1,
    is_transactional=False,
    value=b"value",
    headers=(),
):
    """Return a batch of one record for each timestamp, as aiokafka's producer sends it."""
    builder = DefaultRecordBatchBuilder(
        2, codec, is_transactional, producer_id, epoch, sequence, BATCH_SIZE
    )
    for offset, timestamp in enumerate(timestamps):
        taken = builder.append(offset, timestamp, b"key", value, list(headers))
        assert taken is not None, "the batch is full"
    return memoryview(bytearray(builder.build()))
