"""The ConfigMap that names the books of a cluster, that was changed by hand."""

from __future__ import annotations

import pytest

from everstep.backends.kubernetes.identity import ensure_identity, open_books
from everstep.core.errors import BackendUnavailable
from tests.backends.objects_in_memory import NAMESPACE, ObjectsInMemory


async def test_books_without_an_identity_are_refused_with_what_to_do() -> None:
    api = ObjectsInMemory()  # its books have no data
    with pytest.raises(BackendUnavailable, match=r"has no `identity`\. Delete it"):
        await open_books(api, NAMESPACE)
    with pytest.raises(BackendUnavailable, match=r"has no `identity`\. Delete it"):
        await ensure_identity(api, NAMESPACE, "b00c5", workers=NAMESPACE)
