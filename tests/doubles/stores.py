"""Each object store as a URL below which a test may write."""

import contextlib
import os
import uuid
from collections.abc import Iterator

import pytest
from tests.doubles.gcs import FakeGcs

# gcsfs reads it once, when it is imported: else it asks a bucket over gRPC, and waits, what kind of one it is.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


@contextlib.contextmanager
def gcs(monkeypatch: pytest.MonkeyPatch, delay_s: float = 0.0) -> Iterator[FakeGcs]:
    """A fake GCS that gs:// URLs lead to."""
    import gcsfs

    with FakeGcs(delay_s) as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "none")
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield store
        gcsfs.GCSFileSystem.clear_instance_cache()


@contextlib.contextmanager
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of moto's S3 that s3:// URLs lead to; its URL."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        bucket = f"bucket-{uuid.uuid4().hex[:8]}"
        boto3.client("s3").create_bucket(Bucket=bucket)
        yield f"s3://{bucket}"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()
