"""What the last words of a process say about its end: the cause, whose it is, whether another try can help.

Ordered rows, the first match wins: over the exception that ended it, else over its last lines. What
infrastructure does to a process comes before what a script does wrong, so that a script is not blamed for a
full disk. Where nothing says it, there is no cause: a crash is then answered as one. The cause is a remark of
the decision; it changes neither its level nor its budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from everstep.core.facts import Detail, Fact
from everstep.core.levels import Owner
from everstep.core.patterns import is_found


class Cause(StrEnum):
    """What ended a process."""

    DEVICE = "device"
    NETWORK = "network"
    STORAGE = "storage"
    MEMORY = "memory"
    LIMIT = "limit"
    DATA = "data"
    NUMBERS = "numbers"
    SCRIPT = "script"
    KILLED = "killed"
    NATIVE = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndCause:
    """One row: a pattern of the exception and the last lines, and what they mean."""

    cause: Cause
    owner: Owner
    retry: bool
    """Whether the same command may end better when it is run again."""
    means: str
    pattern: str = ""
    signals: tuple[int, ...] = ()
    codes: tuple[int, ...] = ()
    is_remark: bool = True
    """Whether it says more than the exception itself."""

    def has_ended(self, exit_code: object, signal: object) -> bool:
        """Whether a process of which nothing was printed ended so."""
        return signal in self.signals or exit_code in self.codes


_INFRA, _USER, _UNKNOWN = Owner.INFRA, Owner.USER, Owner.UNKNOWN

END_CAUSES: tuple[EndCause, ...] = (
    EndCause(
        cause=Cause.DEVICE,
        owner=_INFRA,
        retry=True,
        pattern=r"(?i)uncorrectable ECC|ECC_UNCORRECTABLE|fallen off the bus|GPU is lost|NVLink error"
        r"|Unable to determine the device handle|Driver/library version mismatch"
        r"|no CUDA-capable device|No CUDA GPUs are available|driver initialization failed"
        r"|CUDA-capable device\(s\) is/are busy|devices are busy or unavailable"
        r"|system not yet initialized|No HIP GPUs|Xid \(PCI",
        means="a device of the node is broken or out of reach; another node can help",
    ),
    EndCause(
        cause=Cause.MEMORY,
        owner=_USER,
        retry=False,
        pattern=r"(?i)out of shared memory|insufficient shared memory|unable to write to file </torch",
        means="shared memory ran out: a larger /dev/shm or fewer loader processes help",
    ),
    EndCause(
        cause=Cause.MEMORY,
        owner=_USER,
        retry=False,
        pattern=r"(?i)(CUDA|HIP|NPU|XPU|MPS)[^\n]{0,40}out of memory|OutOfMemoryError"
        r"|failure( \d)? 'out of memory'|STATUS_ALLOC_FAILED",
        means="the memory of a device ran out: a smaller batch or more devices help",
    ),
    EndCause(
        cause=Cause.MEMORY,
        owner=_USER,
        retry=False,
        pattern=r"(?i)\bMemoryError\b|can't allocate memory|cannot allocate memory|std::bad_alloc"
        r"|oom.kill|is killed by signal: Killed|Unable to allocate [\d.]+ [KMGT]iB",
        means="the memory of the machine or of the pod ran out",
    ),
    EndCause(
        cause=Cause.STORAGE,
        owner=_INFRA,
        retry=True,
        pattern=r"(?i)No space left on device|Disk quota exceeded|Stale (NFS )?file handle"
        r"|Read-only file system|Input/output error|Transport endpoint is not connected|Remote I/O error",
        means="storage is full, read-only or failed",
    ),
    EndCause(
        cause=Cause.SCRIPT,
        owner=_USER,
        retry=False,
        pattern=r"(?i)ncclInvalidUsage|ncclInvalidArgument|Duplicate GPU detected"
        r"|no kernel image is available|device kernel image is invalid|NoBinaryForGpu|ErrorInvalidImage"
        r"|provided PTX was compiled|device-side assert|Torch not compiled with",
        means="the script uses a device in a way that cannot work",
    ),
    EndCause(
        cause=Cause.NETWORK,
        owner=_INFRA,
        retry=True,
        pattern=r"(?i)ncclSystemError|NET/IB|NET/OFI|ibv_\w+ failed|Name or service not known"
        r"|name resolution|(429|50[0-4]) (Client|Server) Error|Too Many Requests|LocalEntryNotFoundError"
        r"|Max retries exceeded|No route to host|Network is unreachable|couldn't connect to 'https"
        r"|Read timed out|(Read|Connect)Timeout|endpoint URL|ConnectionPool\(|EndpointConnectionError"
        r"|requests\.exceptions\.|urllib\.error|aiohttp\.client_exceptions|httpx\.\w+(Error|Timeout)|SSLError"
        r"|ServiceUnavailable|StatusCode\.UNAVAILABLE|IncompleteRead|ProtocolError",
        means="the network or a service behind it failed",
    ),
    EndCause(
        cause=Cause.NETWORK,
        owner=_UNKNOWN,
        retry=True,
        pattern=r"(?i)ncclRemoteError|remote process exited|closed by (remote )?peer|Connection reset"
        r"|Connection refused|Connection timed out|Broken pipe|waiting for clients|clients joined"
        r"|collective operation timeout|TCPStore|wait timeout|Socket Timeout|Timed out waiting"
        r"|communicator was aborted|C10d store|socket has timed out|HCCL (function )?error"
        r"|Dist(Network|Store)Error|heartbeat timeout|Barrier timed out|DEADLINE_EXCEEDED",
        means="another rank ended or did not answer, or the network between them failed",
    ),
    EndCause(
        cause=Cause.DEVICE,
        owner=_UNKNOWN,
        retry=True,
        pattern=r"(?i)unspecified launch failure|illegal memory access|illegal instruction was encountered"
        r"|misaligned address|STATUS_EXECUTION_FAILED|STATUS_INTERNAL_ERROR|ncclUnhandledCudaError"
        r"|Found no NVIDIA driver|STATUS_NOT_INITIALIZED|(CUDA|HIP|NPU|ACL|XPU)( function)? error:"
        r"|AcceleratorError|aicore|vector core|cudaError\w+|hipError\w+|GPU (hang|reset)|Core halted"
        r"|XlaRuntimeError: INTERNAL",
        means="a device failed in the middle of its work: a kernel of the script or the device itself",
    ),
    EndCause(
        cause=Cause.LIMIT,
        owner=_UNKNOWN,
        retry=True,
        pattern=r"(?i)Too many open files|can't start new thread|Resource temporarily unavailable"
        r"|Address already in use|items of ancdata",
        means="a limit of the machine was reached, or a port is taken",
    ),
    EndCause(
        cause=Cause.NUMBERS,
        owner=_USER,
        retry=True,
        pattern=r"(?i)(loss|grad\w*|output\w*|value\w*|logits?)[^\n]{0,60}\b(nan|inf)\b|FloatingPointError"
        r"|\bnan\b[^\n]{0,40}(loss|grad)|non-finite|contains NaN|encountered NaN|must not contain inf"
        r"|loss scale[^\n]{0,40}minimum",
        means="the numbers went wrong: an earlier checkpoint may train on",
    ),
    EndCause(
        cause=Cause.DATA,
        owner=_UNKNOWN,
        retry=False,
        pattern=r"(?i)PytorchStreamReader failed|UnpicklingError|Ran out of input|SafetensorError"
        r"|invalid load key|BadZipFile|BadGzipFile|JSONDecodeError|Unicode(De|En)codeError"
        r"|UnidentifiedImageError|image file is truncated|ArrowInvalid|zlib\.error|LZMAError"
        r"|tarfile\.ReadError|corrupt|DatasetGenerationError|checksum|magic (bytes|number)"
        r"|unexpected (EOF|end of)|ArrowNotImplemented",
        means="a file is cut off or damaged: of the data, or of a checkpoint",
    ),
    EndCause(
        cause=Cause.DATA,
        owner=_UNKNOWN,
        retry=False,
        pattern=r"FileNotFoundError|PermissionError|NotADirectoryError|IsADirectoryError"
        r"|is not a local folder|RepositoryNotFoundError|GatedRepoError",
        means="a file is not there or may not be read: the path, its rights or what is mounted",
    ),
    EndCause(
        cause=Cause.SCRIPT,
        owner=_USER,
        retry=False,
        pattern=r"ModuleNotFoundError|ImportError|cannot open shared object file|undefined symbol"
        r"|SyntaxError|IndentationError|error: (unrecognized|the following) arguments",
        means="the image or the command lacks something: no restart brings it",
    ),
    EndCause(
        cause=Cause.KILLED,
        owner=_UNKNOWN,
        retry=True,
        pattern=r"DataLoader worker .*(exited unexpectedly|killed by signal: (Term|Hang|Inter))",
        means="a loader process was killed, often for memory",
    ),
    EndCause(
        cause=Cause.SCRIPT,
        owner=_USER,
        retry=False,
        pattern=r"(Name|Attribute|Type|Key|Index|Value|Assertion|ZeroDivision|NotImplemented|Recursion"
        r"|UnboundLocal|Overflow|Lookup)Error\b|loading state_dict|size mismatch|shapes cannot be multiplied"
        r"|does not require grad|Expected all tensors|The size of tensor|Sizes of tensors"
        r"|expected scalar type|Given groups=|invalid for input of size|finished reduction in the prior"
        r"|variable ready only once|MisconfigurationException|UNIMPLEMENTED:|ValidationError"
        r"|ConfigAttributeError",
        means="an exception of the script",
        is_remark=False,
    ),
    EndCause(
        cause=Cause.KILLED,
        owner=_INFRA,
        retry=True,
        pattern=r"(?i)its node has died|node (was|is) (preempted|terminated|lost)",
        means="the node under a process went away",
    ),
    EndCause(
        cause=Cause.KILLED,
        owner=_UNKNOWN,
        retry=True,
        pattern=r"return code = -(9|15)\b|Signal (9|15) \(SIG",
        signals=(9, 15),
        codes=(137, 143),
        means="it was killed from outside",
        is_remark=False,
    ),
    EndCause(
        cause=Cause.NATIVE,
        owner=_UNKNOWN,
        retry=True,
        pattern=r"return code = -(4|6|7|8|11)\b|Signal (4|6|7|8|11) \(SIG|Segmentation fault|\(core dumped\)"
        r"|killed by signal: (Abort|Bus|Illegal|Floating)",
        signals=(4, 6, 7, 8, 11),
        codes=(132, 134, 135, 136, 139),
        means="native code crashed",
        is_remark=False,
    ),
)


def cause_of(fact: Fact) -> EndCause | None:
    """What ended the process of this fact; None where its last words do not say it."""
    if fact.kind != "process.exit":
        return None
    ended = fact.details.get("exit_code"), fact.details.get("signal")
    texts = (str(fact.details.get("exception") or ""), _last_lines(fact.details))
    printed = next(filter(None, map(cause_in, texts)), None)
    return printed or next((row for row in END_CAUSES if row.has_ended(*ended)), None)


def cause_in(text: str) -> EndCause | None:
    """What this exception, or these lines, say."""
    rows = (row for row in END_CAUSES if text and row.pattern)
    return next((row for row in rows if is_found(row.pattern, text)), None)


LINES_READ = 6
"""The newest lines: what was printed long before the end explains another moment."""


def _last_lines(details: Mapping[str, Detail]) -> str:
    return "\n".join(str(details.get("log") or "").splitlines()[-LINES_READ:])
