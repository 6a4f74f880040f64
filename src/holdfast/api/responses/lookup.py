"""Finding responses and their items again (P4, P9, P10, P11): the run behind an id, and what it said.

Nothing is kept beside the run: a stored response is its log, folded. Sits on the service.
"""

from typing import Any

from holdfast.api.responses.response_object import Envelope, envelope_of, render_response
from holdfast.api.service import Service
from holdfast.errors import NotFoundError
from holdfast.ids import RunId
from holdfast.runs.log.reading import fold_log
from holdfast.runs.view import RunView
from holdfast.store.records import RunRecord


async def find_view(service: Service, run: RunId) -> RunView:
    """The run behind a response, live or stored.

    Raises:
        NotFoundError: it is gone.
    """
    view = await service.supervisor.find(run)
    if view is None:
        raise NotFoundError(f"Run {run} is gone.", code="response_not_found")
    return view


def make_envelope(service: Service, record: RunRecord) -> Envelope:
    """What does not change of a response."""
    return envelope_of(record, service.dialect.extras_key)


async def read_response(service: Service, run: RunId) -> dict[str, Any]:
    """The response object as it is now.

    Raises:
        NotFoundError: it is gone.
    """
    view = await find_view(service, run)
    envelope = make_envelope(service, view.record)
    fold = await fold_log(service.store, run, envelope.make_fold())
    return render_response(envelope, fold, status="queued" if view.is_queued else "in_progress")
