"""Object stores on this machine's loopback: S3 by moto, and the part of the GCS JSON API that gcsfs speaks."""
