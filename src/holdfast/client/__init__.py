"""A small client of the runs API, for the terminal and for programs (J1, J2)."""

from holdfast.client.http import HoldfastClient
from holdfast.client.values import (
    Entry,
    Health,
    Model,
    NewRun,
    PendingApproval,
    Replicas,
    ReplicaShown,
    ServerRun,
    Session,
    SessionMessage,
    StartedRun,
    StoppedRun,
    Tokens,
    UsedTool,
)

__all__ = [
    "Entry",
    "Health",
    "HoldfastClient",
    "Model",
    "NewRun",
    "PendingApproval",
    "ReplicaShown",
    "Replicas",
    "ServerRun",
    "Session",
    "SessionMessage",
    "StartedRun",
    "StoppedRun",
    "Tokens",
    "UsedTool",
]
