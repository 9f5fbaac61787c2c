"""Imported by the server that test processes are forked from: detectors take seconds to load, once is enough."""

from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import PrivacyFilter

PrivacyFilter(PrivacyConfig(), b"a key of at least sixteen bytes").clean([(("What is 1 plus 1?",), "en")])
