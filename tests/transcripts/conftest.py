"""`pytest tests/transcripts --rewrite-transcripts` writes what happens as what is expected."""


def pytest_addoption(parser):
    parser.addoption("--rewrite-transcripts", action="store_true", default=False)
