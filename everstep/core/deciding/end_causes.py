"""What the last words of a process say about its end: the cause, whose it is, whether another try can help.

Ordered rows, the first match wins: over the exception that ended it, else over its last lines; the other way
round where the exception only points elsewhere. What infrastructure does to a process comes before what a
script does wrong, so that a script is not blamed for a full disk; where both print the same, the owner is
unknown. Where nothing says it, there is no cause: a crash is then answered as one. The cause is a remark of
the decision; it changes neither its level nor its budget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

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
    """One row: what is looked for in the exception and the last lines, and what it means."""

    cause: Cause
    owner: Owner
    retry: bool
    """Whether the same command may end better when it is run again."""
    means: str
    """What happened and what helps, in one sentence."""
    words: tuple[str, ...] = ()
    """Patterns; one is enough. Upper and lower case are the same."""
    signals: tuple[int, ...] = ()
    codes: tuple[int, ...] = ()
    elsewhere: bool = False
    """Whether another node can help. A restart that cannot use one leaves it out of its reason."""
    is_remark: bool = True
    """Whether it says more than the exception itself."""
    of_checkpoint: bool = False
    """Whether the file in question may be a checkpoint that is there."""
    of_exceptions: bool = False
    """Whether only the exception is searched: the words are common ones, which other lines have as well."""

    @property
    def pattern(self) -> str:
        return f"(?i){'|'.join(self.words)}" if self.words else ""

    @property
    def sentence(self) -> str:
        """What it means, whose it is and whether another try can help."""
        helps = "another try can help" if self.retry else "another try does not help"
        return f"{self.means} (owner: {_OWNERS[self.owner]}; {helps})"

    @property
    def advice(self) -> str:
        """What it means, with what helps beside another try."""
        return f"{self.means}; {ELSEWHERE}" if self.elsewhere else self.means

    def has_ended(self, exit_code: object, signal: object) -> bool:
        """Whether a process of which nothing was printed ended so."""
        return signal in self.signals or exit_code in self.codes


ELSEWHERE = "another node can help"
_INFRA, _USER, _UNKNOWN = Owner.INFRA, Owner.USER, Owner.UNKNOWN
_OWNERS = {_INFRA: "infrastructure", _USER: "user", _UNKNOWN: "unknown"}

_CANNOT = r"\b(could not|couldn't|unable to|cannot|can't|failed to)"
_RUNTIME_ERROR = r"RuntimeError: [^\n]*\b"
_MISTAKES = (
    r"Name|Attribute|Type|Key|Index|Value|Assertion|ZeroDivision|NotImplemented|Recursion|UnboundLocal"
    r"|Overflow|Lookup|FileExists|Arithmetic|StopIteration|Pickling|Einops|\w*Validation|Misconfiguration\w*"
)
_DEVICES = r"\b(CUDA|cu(DNN|BLAS|FFT)|GPU|NPU|TPU|HPU|THC|Ascend|ACL|accelerator|device)\b"

END_CAUSES: tuple[EndCause, ...] = (
    # -- Nodes that went away, and lines that list what may have been and say none of it
    EndCause(
        cause=Cause.KILLED,
        owner=_INFRA,
        retry=True,
        words=(
            r"its node has died|slurmstepd: error: [^\n]*(/slurmd/|container_|prolog|cgroup plugin)",
            r"node (was|is) (preempted|terminated|lost)",
            r"\bDUE TO (PREEMPTION|NODE FAIL\w*)",
            r"spot[^\n]{0,20}interrupt|instance (is being|was) (terminated|preempted|reclaimed)",
            r"NODE_FAIL|Node failure on",
            r"node was low on resource|termination is imminent|preemption notice|maintenance event",
            r"srun: error: [^\n]*(Task launch|Unable to (create step|confirm)|Communication connection)",
            r"\bEvicted\b",
        ),
        means="the node under a process went away, was given to another job, or Slurm could not start there",
    ),
    EndCause(
        cause=Cause.KILLED,
        owner=_UNKNOWN,
        retry=True,
        words=(r"potential root causes",),
        means="a process of the job ended, its launcher does not say how: see its own last lines, and the"
        " memory of the pod",
    ),
    # -- Devices of a node that are broken or out of reach
    EndCause(
        cause=Cause.DEVICE,
        owner=_INFRA,
        retry=True,
        words=(
            r"uncorrectable ECC|ECC_UNCORRECTABLE|multi.?bit ECC|row remap\w* fail",
            r"fallen off the bus|GPU is lost|GPU requires reset|Xid \(PCI",
            r"NVLink error|NVLS\b|NVLink SHARP|transport/nvls|Fabric ?Manager|NVSwitch",
            r"Unable to determine the device handle|Failed to initialize NVML|NVMLError",
            r"library version mismatch",
            r"no (CUDA|ROCm|HIP|NPU|XPU)\S* (devices?|GPUs?)\b|No (CUDA|HIP) GPUs are available",
            r"ERROR_NO_DEVICE",
            r"driver initialization failed|system not (yet initialized|ready)|SYSTEM_NOT_READY",
            r"Device acquire failed",
            r"devices?(\(s\))? (is/)?are busy|busy or unavailable|DEVICES?_?UNAVAILABLE",
        ),
        means="a device of the node is broken or out of reach",
        elsewhere=True,
    ),
    # -- Memory
    EndCause(
        cause=Cause.LIMIT,
        owner=_INFRA,
        retry=False,
        words=(r"ibv_\w+[^\n]*(Cannot allocate memory|ENOMEM)|memlock|locked memory",),
        means="the node lets a process lock too little memory for RDMA: raise memlock (ulimit -l) there",
    ),
    EndCause(
        cause=Cause.MEMORY,
        owner=_USER,
        retry=False,
        words=(
            r"out of shared memory|insufficient shared memory|unable to write to file </torch",
            r"shared memory segment|/dev/shm[^\n]*No space|No space[^\n]*/dev/shm",
        ),
        means="shared memory ran out: a larger /dev/shm or fewer loader processes help",
    ),
    EndCause(
        cause=Cause.MEMORY,
        owner=_UNKNOWN,
        retry=True,
        words=(r"worker[^\n]*killed by signal: Bus error|bus error encountered in worker",),
        means="a loader process read memory that went away: /dev/shm is too small, or a file that it maps"
        " cannot be read any more",
    ),
    EndCause(
        cause=Cause.MEMORY,
        owner=_USER,
        retry=False,
        words=(
            r"(CUDA|HIP|NPU|XPU|MPS|XLA|GPU|device|HBM)[^\n]{0,60}out.of.memory",
            r"OutOfMemory(Error)?\b|Tried to allocate",
            r"failure( \d)? 'out of memory'|STATUS_ALLOC_FAILED|MemoryAllocation\b|OOM when allocating",
            r"RESOURCE_EXHAUSTED[^\n]{0,40}(memory|alloc)|Ran out of memory in memory space",
        ),
        means="the memory of a device ran out: a smaller batch or more devices help",
    ),
    EndCause(
        cause=Cause.MEMORY,
        owner=_USER,
        retry=False,
        words=(
            r"\bMemoryError\b|(can't|cannot|unable to|failed to) allocate (memory|[\d.]+ ?[KMGT]i?B)",
            r"not enough memory",
            r"std::bad_alloc|DefaultCPUAllocator|oom.?kill|: Out Of Memory\b|cgroup out of memory",
            r"running low on memory",
            r"exceeded (job |step )?memory limit|\bout.of.memory\b",
            r"(insufficient|exceed\w*)[^\n]{0,20} memory\b",
        ),
        means="the memory of the machine, the pod or the Slurm step ran out: ask for more, or use less",
    ),
    # -- Storage
    EndCause(
        cause=Cause.STORAGE,
        owner=_INFRA,
        retry=True,
        words=(
            r"No space left on device|disk (is )?full|quota exceeded|exceeded[^\n]{0,20} quota",
            r"Stale (NFS )?file handle|Read-only file system|Input/output error|Remote I/O error",
            r"Transport endpoint|Structure needs cleaning|No locks available|unable to lock file",
            r"Errno (5|28|30|107|108|116|121|122|524)\b|\b(ENOSPC|EDQUOT|ESTALE|EROFS|ENOTCONN)\b",
            r"PytorchStreamWriter|inline_container[^\n]*unexpected pos|file write failed|iostream error",
        ),
        means="storage is full, read-only or failed: make room or mend it, or write elsewhere",
    ),
    # -- What the job may not reach, or was never allowed to
    EndCause(
        cause=Cause.SCRIPT,
        owner=_USER,
        retry=False,
        words=(
            r"gated repo|GatedRepoError|API.?key (is )?(not|missing)|No API.?key|NoCredentialsError",
            r"Unauthorized",
            r"InvalidAccessKeyId|SignatureDoesNotMatch|\b401 Client Error|Invalid (user )?token",
            r"AuthenticationError|do not have permission|permission denied to access",
            r"outgoing traffic has been disabled|OfflineModeIsEnabled|offline mode is enabled",
        ),
        means="the job has no right to its model, data or service, or works offline: give it the token or the"
        " files",
    ),
    EndCause(
        cause=Cause.DATA,
        owner=_UNKNOWN,
        retry=False,
        words=(
            r"\b(400|403|404|410) Client Error|HTTP Error (403|404)|RepositoryNotFoundError",
            r"EntryNotFoundError: 4",
            r"AccessDenied|NoSuchKey|NoSuchBucket|\(40[34]\) when calling",
            r"exceptions\.(NotFound|Forbidden):|ExpiredToken|token (is|has) expired",
        ),
        means="a model or data is not there, or the job may not read it: check its name, rights and token",
    ),
    # -- Ways to use a device that cannot work
    EndCause(
        cause=Cause.SCRIPT,
        owner=_USER,
        retry=False,
        words=(
            r"ncclInvalidUsage|NCCL[^\n]*invalid (argument|usage)|ncclInvalidArgument",
            r"Duplicate GPU detected",
            r"no kernel image is available|device kernel image is invalid|NoBinaryForGpu",
            r"ErrorInvalidImage",
            r"device-side assert|Torch not compiled with|OutOfResources",
            r"out of resource:",
            r"peer access is not supported|re-initialize CUDA in forked|mismatch\w* NCCL version",
        ),
        means="the script or its build uses a device in a way that cannot work: no restart changes it",
    ),
    EndCause(
        cause=Cause.DEVICE,
        owner=_UNKNOWN,
        retry=True,
        words=(r"invalid device ordinal|InvalidDevice\b",),
        means="a device of that number is not there: the node lost one, or the job has more ranks there than"
        " devices",
    ),
    EndCause(
        cause=Cause.DEVICE,
        owner=_UNKNOWN,
        retry=False,
        words=(
            r"provided PTX was compiled|driver on your system is too old|driver version is insufficient",
            r"unsupported display driver",
            r"forward compatibility was attempted",
        ),
        means="the driver of the node is older than the build needs: a newer driver or an older build helps",
    ),
    # -- The network, and services behind it
    EndCause(
        cause=Cause.NETWORK,
        owner=_INFRA,
        retry=True,
        words=(
            r"ncclSystemError|unhandled system error|NET/(IB|OFI|UCX)|\bibv_\w+ failed|libfabric:",
            r"\befa_\w+|\bmlx\d_\w+",
            r"UCX +ERROR",
            r"async event ?: [^\n]*(port|fatal|catastrophic)|Network is unreachable|No route to host",
            r"Name or service not known|name resolution|nodename nor servname|gethostby\w+",
        ),
        means="the network between the nodes failed: the fabric, an adapter or a name",
        elsewhere=True,
    ),
    EndCause(
        cause=Cause.NETWORK,
        owner=_INFRA,
        retry=True,
        words=(
            r"\b(429|50[0-4]) (Client|Server) Error|HTTP Error (429|50\d)|HTTP 50\d|Too Many Requests",
            r"SlowDown",
            r"reduce your request rate|Throttling|rate limit|Bad Gateway|Service ?Unavailable\b",
            r"Gateway Time-?out",
            r"Max retries exceeded|Read timed out|(Read|Connect)Timeout|ConnectionPool\(|urlopen error",
            r"SSLError",
            r"LocalEntryNotFoundError|couldn't connect to 'http|endpoint URL|EndpointConnectionError",
            r"requests\.exceptions\.|urllib3?\.(error|exceptions)|aiohttp\.client_exceptions",
            r"httpx\.\w+(Error|Timeout)",
            r"FSTimeoutError",
            r"/(aiohttp|urllib3|httpx|httpcore|botocore|fsspec|s3fs|gcsfs|adlfs)/[^\n]*line \d",
            r"IncompleteRead|ProtocolError|RemoteDisconnected|ServerDisconnected|ClientConnectorError",
            r"CommError|Network error \(|(Run initialization has|(request|upload|download)\w*) timed out",
            r"\bConnection ?error\b",
            r"google\.api_core\.exceptions\.(Service|Gateway|TooMany|Deadline|Internal)",
            r"ServiceRequestError",
        ),
        means="a service behind the network, as a hub or an object store, did not answer or refused for now",
    ),
    # -- Limits of the machine; before other ranks, since a taken port is printed as an error of the network
    EndCause(
        cause=Cause.LIMIT,
        owner=_UNKNOWN,
        retry=True,
        words=(r"Address already in use|EADDRINUSE",),
        means="a port is taken: two runs share a node, or an old process holds it; take another port",
    ),
    EndCause(
        cause=Cause.LIMIT,
        owner=_UNKNOWN,
        retry=True,
        words=(
            r"Too many open files|unable to open shared memory object|items of ancdata|EMFILE",
            r"can't start new thread|pthread_create failed",
            r"Resource temporarily unavailable|Thread creation failed|RLIMIT_NPROC|unable to fork",
        ),
        means="a limit of open files, threads or processes was reached (ulimit -n, -u, pids of the cgroup)",
    ),
    EndCause(
        cause=Cause.LIMIT,
        owner=_UNKNOWN,
        retry=True,
        words=(r"DUE TO TIME ?LIMIT|exceeded[^\n]{0,20}(wall ?time|time limit)|TimeLimit reached",),
        means="the time of the allocation ran out: ask for more time, it goes on from its checkpoint",
    ),
    # -- Other ranks
    EndCause(
        cause=Cause.NETWORK,
        owner=_UNKNOWN,
        retry=False,
        words=(
            r"no (socket|network) interface|ncclSocketInit|SOCKET_IFNAME|interface \S+ not found",
            r"Unable to find address for|unsupported gloo device",
        ),
        means="no such network interface: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME does not fit the node",
    ),
    EndCause(
        cause=Cause.NETWORK,
        owner=_UNKNOWN,
        retry=True,
        words=(
            r"ncclRemoteError|remote process exited|communicator was aborted",
            r"collective operation timeout",
            r"watchdog got stuck|watchdog hang|Timeout at NCCL work",
            r"NCCL operations have failed or timed out",
            r"key-value store|failed to connect|lost communication|PMIX ERROR|heartbeat (monitor )?time",
            r"\bTimeoutError\b",
            r"closed by (remote )?peer|Connection (reset|refused|timed out|closed)|Broken pipe",
            r"Socket (closed|Timeout)",
            r"Timed out waiting|wait timeout|waiting for clients|clients joined",
            r"TCPStore|C10d store|socket has timed out|Dist(Network|Store)Error|Rendezvous\w*Error",
            r"\bgloo\b[^\n]*(fail|timed?.?out|timeout)|HCCL|\bE[IJ]\d{4}\b|FileNotFoundError: https?://",
            r"Barrier timed out|DEADLINE_EXCEEDED|\bUNAVAILABLE: |StatusCode\.UNAVAILABLE",
            r"coordination.service|another task died|Session \w+ is not found|Horovod\w*Error|xccl",
            r"(one|another|other) of the (other )?ranks|peer process|\bMPI_[A-Z]\w+|\b(opal|orte|pmix)_\w+",
            r"connection back to",
            r"OneCCL",
        ),
        means="another rank ended or did not answer, or the network between them failed: see the rank that"
        " ended first",
    ),
    EndCause(
        cause=Cause.DEVICE,
        owner=_UNKNOWN,
        retry=True,
        words=(
            r"unspecified launch failure|illegal memory access|illegal instruction was encountered",
            r"misaligned address|(CUDA|HIP|NPU|ACL|XPU|MUSA)( \w+)? (error|failure)\b",
            r"(CUDNN|CUBLAS|CUBLASLT|CUSPARSE|CUSOLVER|CUFFT|HIPBLAS|MIOPEN)_?STATUS_",
            r"cu(dnn|blas) (handle|error)",
            r"ncclUnhandledCudaError|AcceleratorError|cudaError\w+|hipError\w+|HSA_STATUS|CUDA_ERROR_\w+",
            r"unhandled cuda error|cudaGet\w+|Unable to initialize backend|Found no NVIDIA driver",
            r"GPU (hang|reset|fault)|fault by GPU|(Core|device) halted",
            r"halt(ed)? (is )?unexpected|DeferredCudaCall",
            r"(TPU|backend) initialization failed|XlaRuntimeError: INTERNAL",
            r"aicore|vector core|\bE[EHLRZ]\d{4}\b|\brt\w+ execute failed|ACL stream",
            r"\bacl(rt|nn)\w+[^\n]*(fail|error)",
        ),
        means="a device failed in the middle of its work: the device itself, or a kernel of the script if it"
        " fails at the same place again",
    ),
    EndCause(
        cause=Cause.NETWORK,
        owner=_UNKNOWN,
        retry=True,
        words=(r"ncclInternalError|NCCL error",),
        means="the communication of the ranks failed inside NCCL: NCCL_DEBUG=INFO names the place",
    ),
    EndCause(
        cause=Cause.NATIVE,
        owner=_UNKNOWN,
        retry=True,
        words=(
            r"double free or corruption|free\(\): invalid|malloc\w*\(\): |corrupted (size|double-linked)",
            r"munmap_chunk",
            r"stack smashing detected|killed by signal: (Abort|Segm|Illegal|Floating)|Fatal Python error",
        ),
        means="native code crashed: a library of the image or what it was given, seldom the node",
    ),
    # -- Numbers, data, the image
    EndCause(
        cause=Cause.NUMBERS,
        owner=_USER,
        retry=True,
        words=(
            r"(loss|grad\w*|output\w*|logits?|norm|result)[^\n]{0,60}\b(nan|inf|infinite)\b|returned nan",
            r"values? (is|are|was) (nan|inf)|minimum loss scale",
            r"FloatingPointError|LinAlgError",
            r"\bnan\b[^\n]{0,40}(loss|grad)|non-finite|contains NaN|encountered NaN|must not contain inf",
            r"loss scale[^\n]{0,40}minimum|diverge[ds]\b",
        ),
        means="the numbers went wrong: an earlier checkpoint or a smaller learning rate may train on",
    ),
    EndCause(
        cause=Cause.DATA,
        owner=_UNKNOWN,
        retry=False,
        words=(
            r"PytorchStreamReader|UnpicklingError|Ran out of input|SafetensorError|invalid load key",
            r"BadZipFile|BadGzipFile|JSONDecodeError|Unicode(De|En)codeError|zlib\.error|LZMAError",
            r"ReadError\b",
            r"UnidentifiedImageError|(file|image|archive|data|download)\w* (is|was|are) truncated",
            r"corrupt",
            r"Arrow(Invalid|NotImplemented|IOError)|DatasetGenerationError|checksum|magic (bytes|number)",
            r"ParserError",
            r"unexpected (EOF|end of)|premature end|file signature not found|Unable to open file",
            r"moov atom|expected[^\n]{0,60}\bbytes\b[^\n]{0,30}\b(got|but|only)\b",
        ),
        means="a file is cut off or damaged, of the data or of a checkpoint: replace it, or go back to an"
        " older checkpoint",
        of_checkpoint=True,
    ),
    EndCause(
        cause=Cause.SCRIPT,
        owner=_USER,
        retry=False,
        words=(
            r"ModuleNotFoundError|ImportError|Failed to import|cannot open shared object file",
            r"undefined symbol",
            r"SyntaxError|IndentationError|version `\w+_[\d.]+' not found|untagged enum",
            r"PackageNotFoundError|not available in this (library|build)|exec format error",
            r"environment variable[^\n]{0,30} not set|load (dynamic )?library",
            r"error: (unrecognized|the following|argument|ambiguous|one of the)|No such (option|command)",
            r"command not found|DistributionNotFound|VersionConflict|ninja is required",
            r"Error building extension|CalledProcessError[^\n]*(gcc|g\+\+|-cc|nvcc|ninja|cmake)'",
        ),
        codes=(126, 127),
        means="the image or the command lacks something, or its packages do not fit each other: no restart"
        " brings it",
    ),
    EndCause(
        cause=Cause.DATA,
        owner=_UNKNOWN,
        retry=False,
        words=(
            r"FileNotFoundError|PermissionError|NotADirectoryError|IsADirectoryError|Permission denied",
            r"is not a local folder|Can't load (the )?\w+ for|does not appear to have a file",
            r"can't open file",
            r"NotFoundError\b|No such file or directory|_src\.empty\(\)",
        ),
        means="a file is not there or may not be read: check the path, its rights and what is mounted",
    ),
    # -- Ended from outside
    EndCause(
        cause=Cause.KILLED,
        owner=_UNKNOWN,
        retry=True,
        words=(r"worker[^\n]*(exited unexpectedly|killed by signal: (Kill|Term|Hang|Inter))",),
        means="a loader process was killed, often since the memory of the pod ran out: fewer loader processes"
        " or more memory help then",
    ),
    EndCause(
        cause=Cause.KILLED,
        owner=_UNKNOWN,
        retry=True,
        words=(
            r"BrokenProcessPool|abruptly",
            r"slurmstepd[^\n]*CANCELLED|SignalException|SIGTERMException|\d+ death signal|got signal: \d",
            r"(Actor|RayActor|WorkerCrashed|ActorDied)Error|actor (is dead|died)|KeyboardInterrupt",
        ),
        means="it was ended from outside: by an operator, a scheduler or the end of a session",
    ),
    # -- Words of a kind, where no row above has the sentence. They come before the types of exceptions that
    # -- are the script's: one that mentions a server or a file is not the user's for its type alone.
    EndCause(
        cause=Cause.NETWORK,
        owner=_UNKNOWN,
        retry=True,
        words=(
            rf"{_CANNOT} (connect|reach|resolve|contact|communicate)",
            r"connection (was |has been |is )?(lost|aborted|closed|broken)|\bunreachable|not reachable",
            r"timed out",
            r"server (closed|disconnected|error|is down)|did not (respond|answer)|disconnected",
        ),
        means="something behind the network did not answer: another rank or a service",
    ),
    EndCause(
        cause=Cause.STORAGE,
        owner=_UNKNOWN,
        retry=True,
        words=(
            r"I/O error|write error|error writing|failed writing|LockError|\.nfs[0-9a-f]{8}",
            rf"{_CANNOT} (write|save|flush|sync)\b",
        ),
        means="writing a file failed: check the room, the rights and the storage below",
    ),
    EndCause(
        cause=Cause.DATA,
        owner=_UNKNOWN,
        retry=False,
        words=(
            rf"{_CANNOT} (read|open|decode|parse|deserialize|identify)\b|storage has wrong size",
            rf"{_CANNOT} load [^\n]{{0,30}}(weights|checkpoint|model|file|data)",
            r"\b(files?|filename|path|object|bucket|directory|folder|dataset)\b[^\n]{0,120} not found\b",
            r"\bno\b[^\n]{0,30} files? (were |was )?found",
        ),
        means="a file cannot be read: it is damaged, of another format, or not there",
        of_checkpoint=True,
    ),
    # -- The script
    EndCause(
        cause=Cause.SCRIPT,
        owner=_USER,
        retry=False,
        words=(
            rf"\b({_MISTAKES})(Error|Exception)\b",
            r"\bStopIteration\b|MisconfigurationException",
            r"ConfigAttributeError|ConfigKeyError|Error\(s\) in loading|loading state_dict|size mismatch",
            r"shapes? (mismatch|cannot be multiplied)|does not require grad|Expected all tensors",
            r"Sizes? of tensors?",
            r"expected scalar type|Given groups=|invalid for input of size",
            r"finished reduction in the prior",
            r"variable ready only once|expanded size of the tensor|UNIMPLEMENTED:",
        ),
        means="an exception of the script",
        is_remark=False,
    ),
    EndCause(
        cause=Cause.SCRIPT,
        owner=_USER,
        retry=False,
        words=(
            rf"{_RUNTIME_ERROR}(tensors?|dtype|shapes?|dim(ension)?s?|grad(ient)?s?)\b",
            rf"{_RUNTIME_ERROR}(backward|autograd|inplace)\b",
            rf"{_RUNTIME_ERROR}(only supports?|not compatible with)\b",
            rf"{_RUNTIME_ERROR}(out of (range|bounds)|not implemented for|state_dict|weight of size)",
            rf"{_RUNTIME_ERROR}(has not been initialized|start a new process before|same device|divisible)",
            rf"{_RUNTIME_ERROR}already (been )?(set|initialized|called|registered|exists?)",
            r"\b(omegaconf|hydra|yaml|click|pydantic\w*|jsonschema|dacite|tyro|jsonargparse)\.[\w.]+: ",
            r"INVALID_ARGUMENT|InvalidArgumentError|jax\.errors\.|torch\._dynamo\.exc",
            r"BackendCompilerFailed|CompilationError|Config\w*(Error|Exception)",
        ),
        means="an exception of the script, by its words",
        is_remark=False,
        of_exceptions=True,
    ),
    EndCause(
        cause=Cause.SCRIPT,
        owner=_UNKNOWN,
        retry=False,
        words=(r"ASSERT FAILED",),
        means="an assertion of a library does not hold: it is used in a way it does not know, or has a"
        " defect",
    ),
    # -- Who failed, where nothing says how
    EndCause(
        cause=Cause.DEVICE,
        owner=_UNKNOWN,
        retry=True,
        words=(
            rf"{_DEVICES}[^\n]{{0,80}}(fail|error|halted|abnormal|lost|not (available|found|detected))",
            rf"(fail|error|unavailable)\w*[^\n]{{0,60}}{_DEVICES}",
        ),
        means="a device or its driver failed: the device itself, or what the script wants of it",
    ),
    # -- Signals and codes, where nothing was printed that says more
    EndCause(
        cause=Cause.KILLED,
        owner=_UNKNOWN,
        retry=True,
        words=(
            r"(return code =|exit ?code *[:=]) -?(9|15|137|143)\b|signal (9|15)\b",
            r"(terminated with|received|killed by) signal SIG(KILL|TERM)",
            r"died with <Signals.SIG(KILL|TERM)",
            r"\btasks? [\d,-]+: (Killed|Terminated)",
        ),
        signals=(1, 2, 9, 15),
        codes=(129, 130, 137, 143, 247, 241),
        means="it was killed from outside",
        is_remark=False,
    ),
    EndCause(
        cause=Cause.NATIVE,
        owner=_UNKNOWN,
        retry=True,
        words=(
            r"(return code =|exit ?code *[:=]) -(4|6|7|8|11)\b|\bSIG(ILL|ABRT|BUS|FPE|SEGV)\b",
            r"signal (4|6|7|8|11)\b",
            r"Segmentation fault|\(core dumped\)",
        ),
        signals=(4, 6, 7, 8, 11),
        codes=(132, 134, 135, 136, 139),
        means="native code crashed",
        is_remark=False,
    ),
)

POINTS_ELSEWHERE = re.compile(
    r"[\w.]+:?\s*$"  # only its type is known
    r"|.*\b(NCCL error in|unhandled (cuda|system) error|actor died|following (error|operation))"
    r"|.*:\s*$"  # what follows is in the next lines
    r"|.*\b(above|error in call to target|inner exception|non-zero exit status|exited unexpectedly)"
    r"|.*\b(Caught \w+ in|occurred while generating)",
    re.IGNORECASE,
)
"""An exception that says less than the lines around it."""


def cause_of(fact: Fact) -> EndCause | None:
    """What ended the process of this fact; None where its last words do not say it."""
    if fact.kind != "process.exit":
        return None
    ended = fact.details.get("exit_code"), fact.details.get("signal")
    exception, lines = str(fact.details.get("exception") or ""), _last_lines(fact.details)
    by_exception = partial(cause_in, exception)
    by_lines = partial(cause_in, lines, is_exception=False)
    is_vague = POINTS_ELSEWHERE.match(exception) is not None
    order = (by_lines, by_exception) if is_vague else (by_exception, by_lines)
    printed = next(filter(None, (find() for find in order)), None)
    return printed or next((row for row in END_CAUSES if row.has_ended(*ended)), None)


def cause_in(text: str, *, is_exception: bool = True) -> EndCause | None:
    """What this exception, or these lines, say."""
    rows = (
        row for row in END_CAUSES if text and row.words and (is_exception or not row.of_exceptions)
    )
    return next((row for row in rows if is_found(row.pattern, text)), None)


LINES_READ = 6
"""The newest lines: what was printed long before the end explains another moment."""


def _last_lines(details: Mapping[str, Detail]) -> str:
    return "\n".join(str(details.get("log") or "").splitlines()[-LINES_READ:])
