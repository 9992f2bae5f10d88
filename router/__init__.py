"""Where a request goes: the pure core's public face.

The shells that know Ray (`actor`, `client`, `pinned`) and the event relay are imported by their own names.
"""

from router.admission import Overloaded
from router.chains import Chains
from router.config import RouterConfig
from router.contracts import ContractRefused
from router.core import CoreStats, PoolView, RouterCore, WorkerStatus
from router.fleet import NoWorker, UnknownWorker
from router.index import BlockIndex, Leading, Match
from router.keys import RouterError, block_keys, chain_key, root_key
from router.load import LoadBook, WorkerLoad
from router.receipts import Outcome, Receipt
from router.structures import make_index, warm_up

__all__ = [
    "BlockIndex",
    "Chains",
    "ContractRefused",
    "CoreStats",
    "Leading",
    "LoadBook",
    "Match",
    "NoWorker",
    "Outcome",
    "Overloaded",
    "PoolView",
    "Receipt",
    "RouterConfig",
    "RouterCore",
    "RouterError",
    "UnknownWorker",
    "WorkerLoad",
    "WorkerStatus",
    "block_keys",
    "chain_key",
    "make_index",
    "root_key",
    "warm_up",
]
