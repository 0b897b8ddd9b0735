"""NCCL names and values: NCCL ignores what it does not know, so `ops` must not.

If this fails, a misspelt variable is deployed and the tuning is lost without a message, or a legal one is refused.
"""

import pytest

from ops.model.nccl import nccl_problems


def judged(name: str, value: str) -> str:
    return "; ".join(problem.message for problem in nccl_problems({name: value}, ("env",)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_PROTO", "LL"),
        ("NCCL_PROTO", "LL,Simple"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_PROTO", "simple"),
        ("NCCL_PROTO", "allreduce:LL;broadcast:^LL128,Simple"),
        ("NCCL_ALGO", "Ring"),
        ("NCCL_ALGO", "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring"),
        ("NCCL_ALGO", "allreduce:^tree"),
        ("NCCL_P2P_LEVEL", "SYS"),
        ("NCCL_P2P_LEVEL", "5"),
        ("NCCL_BUFFSIZE", "16777216"),
        ("NCCL_BUFFSIZE", "0x1000000"),
        ("NCCL_MAX_NCHANNELS", "16"),
        ("NCCL_NTHREADS", "512"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "INIT,ENV"),
        ("NCCL_DEBUG_SUBSYS", "^NET"),
        ("NCCL_CUMEM_ENABLE", "0"),
        ("NCCL_NVLS_ENABLE", "2"),
    ],
)
def test_legal_values_pass(name: str, value: str) -> None:
    assert judged(name, value) == ""


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NCCL_PROTO", "NOPE", "none of LL, LL128, Simple"),
        ("NCCL_PROTO", "LL, Simple", "` Simple` is none of"),
        ("NCCL_PROTO", "LL,^Simple", "`^Simple` is none of"),
        ("NCCL_PROTO", "", "`` is none of"),
        ("NCCL_PROTO", "LL;Simple", "is no function"),
        ("NCCL_PROTO", "allredcue:LL", "`allredcue` is no function"),
        ("NCCL_ALGO", "Rign", "none of Tree, Ring"),
        ("NCCL_P2P_LEVEL", "FAR", "one of LOC, NVL"),
        ("NCCL_MAX_NCHANNELS", "99", "from 1 to 64"),
        ("NCCL_MAX_NCHANNELS", "many", "a whole number"),
        ("NCCL_NTHREADS", "500", "one of 64, 128, 256, 512"),
        ("NCCL_P2P_DISABLE", "yes", "a whole number from 0 to 1"),
        ("NCCL_PROTOO", "LL", "did you mean NCCL_PROTO"),
        ("NCCL_TREE_THRESHOLD", "0", "removed in NCCL 2.5"),
        ("PATH", "/bin", "not a variable that NCCL reads"),
        ("NCCL_TOPO_FILE", "", "is empty"),
    ],
)
def test_illegal_names_and_values_are_explained(name: str, value: str, says: str) -> None:
    assert says in judged(name, value)
