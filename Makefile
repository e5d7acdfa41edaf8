# What one does here. A bare `make` lists it.

PYTHON ?= python3
# The long fixtures (a Temporal server) are made once per process: tests of one file stay together, and files that
# take long come first, as tests/conftest.py sorts them: xdist would have those of few tests last.
PARALLEL ?= -n auto --maxprocesses 2 --dist loadfile --no-loadscope-reorder
# Nearly half of a quick test is waiting, for another process, for a second to pass: on two processors four at a
# time take 269 s, three 336 s.
QUICK ?= -n 4 --dist loadfile --no-loadscope-reorder
# Long tests wait as well, but four at a time make each other late.
SLOW ?= -n 3 --dist loadfile --no-loadscope-reorder
# What made-up histories start from. They hold numbers found in the code too, so a change may meet others:
# look further before you hand one in, make test-long SEED=$$RANDOM ARGS="-k many_histories"
SEED ?= 2026
# A share of the long tests, by their names and the commit: make test-long SHARD=2/4
SHARD ?=
# .ci/run has SECOND_CHANCE=yes: what failed beside others runs again, alone, and is printed as FLAKY if it passes.
SECOND_CHANCE ?=
# What the tests are run with, besides this machine: make test ON=torch, make test-cluster ON=kueue
ON ?=
# More arguments for pytest: make test ARGS="tests/core -k hang"
ARGS ?=

# Each test process, and each of the hundreds that tests start, would compile our modules anew.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
PYTEST = $(BIN)/python -m $(if $(SECOND_CHANCE),tests.gate,pytest)
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Downloads and compiles in parallel: half as long as pip.
UV = $(BIN)/uv pip install --quiet --python $(BIN)/python
READY := .venv/.ready
TORCH := .venv-torch
COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --upgrade \
	--no-emit-index-url --no-emit-find-links --no-annotate --quiet --custom-compile-command 'make constraints'
LONG = -m long --hypothesis-seed=$(SEED) $(SLOW) $(if $(SHARD),--shard=$(SHARD)) $(WITH_KUBERNETES) $(ARGS)
# Elsewhere tests/kubernetes is collected only when it is named.
WITH_KUBERNETES = --override-ini='norecursedirs=.* tests/torch tests/browser'

.DEFAULT_GOAL := help
.PHONY: help setup check fix test test-long test-cluster torch test-torch testbed test-kubernetes test-kubelet test-kueue test-volcano test-python39 test-agent39 test-image test-browser chaos kill-table demo demo-kubernetes bench bench-peers newest-peers docs recording site histories wheel agent release constraints audit clean

help: ## list these recipes
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything needed here

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: $(PYTHON) is older than 3.11; try: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "error: $(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@sed -n '/^uv==/,/[^\\]$$/p' constraints.txt >.venv/uv.txt
	$(PIP) --require-hashes -r .venv/uv.txt
	$(UV) --compile-bytecode --require-hashes -r constraints.txt
	$(UV) --no-deps --no-build-isolation -e .
	@touch $(READY)

check: $(READY) ## format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

fix: $(READY) ## let ruff format and repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Each of these is a recipe of its own too, test-torch or test-kueue.
TESTED_HERE = torch browser agent39
TESTED_ON_CLUSTERS = kubernetes kubelet kueue volcano python39 image

ifneq ($(ON),)
ifeq ($(filter $(ON),$(TESTED_HERE) $(TESTED_ON_CLUSTERS)),)
$(error ON=$(ON): one of $(TESTED_HERE), or with test-cluster of $(TESTED_ON_CLUSTERS))
endif
test: test-$(ON)
else
test: $(READY) ## every test that takes a few seconds at most; others: make test ON=torch (browser, agent39)
	$(PYTEST) -m 'not long' --hypothesis-seed=$(SEED) $(QUICK) $(ARGS)
endif

test-long: testbed ## the long ones: real processes, real waiting; a share: make test-long SHARD=2/4
	$(PYTEST) $(LONG)

test-cluster: test-$(or $(ON),kubernetes) ## the quick ones on a real Kubernetes, built first; more: ON=kubelet, kueue, volcano, python39, image

torch: $(TORCH)/.ready ## make .venv-torch with PyTorch, a download of 2.5 GB

# Not compiled here: each file is when it is first imported, and two thirds never are.
$(TORCH)/.ready: $(READY) constraints-torch.txt
	$(PYTHON) -m venv $(TORCH)
	$(BIN)/uv pip install --quiet --python $(TORCH)/bin/python --require-hashes -r constraints-torch.txt
	@touch $@

# Those that need PyTorch, with that of .venv-torch; a hundred recoveries in a row: ARGS='-m long'.
test-torch: $(TORCH)/.ready testbed
	$(PYTEST) tests/torch tests/kubernetes/test_torch_ddp.py tests/kubernetes/test_torch_survivors.py -m 'not long' -n 3 --dist load --maxschedchunk 1 $(ARGS)

testbed: $(READY) ## build a Kubernetes control plane for the tests, once per machine: some 10 minutes of a processor
	$(BIN)/python -m tests.testbed.build

# The quick ones on a real Kubernetes control plane, which it builds first.
test-kubernetes: testbed
	$(PYTEST) tests/kubernetes -m 'not long and not torch and not kubelet and not kueue and not volcano and not python39 and not image' $(PARALLEL) $(ARGS)

# The core scenarios under three real kubelets, built first; needs containerd, and root.
test-kubelet: testbed
	$(BIN)/python -m tests.testbed.build kubelet
	$(PYTEST) tests/kubernetes/test_real_kubelets.py $(ARGS)

# Jobs in the queues of a real Kueue, built first: some 5 minutes of a processor.
test-kueue: testbed
	$(BIN)/python -m tests.testbed.build kueue
	$(PYTEST) tests/kubernetes/test_kueue.py $(ARGS)

# Jobs whose pods a real Volcano schedules, built first: some 3 minutes of a processor.
test-volcano: testbed
	$(BIN)/python -m tests.testbed.build volcano
	$(PYTEST) tests/kubernetes/test_volcano.py $(ARGS)

# Agents in images with Python 3.9, which comes from a mirror of Debian.
test-python39: testbed
	$(BIN)/python -m tests.testbed.python39
	$(PYTEST) tests/kubernetes/test_python_39.py $(ARGS)

# Agents with that Python 3.9 without Kubernetes; it comes from a mirror of Debian.
test-agent39: $(READY)
	root=$$($(BIN)/python -m tests.testbed.python39) && AGENT_PYTHON=$$root/bin/python3 \
		LD_LIBRARY_PATH=$$root/usr/lib/x86_64-linux-gnu $(PYTEST) tests/agent -m 'not long' $(PARALLEL) $(ARGS)

# The image of deploy/Dockerfile, built and run; needs buildah, debootstrap, runc, and root.
test-image: testbed
	$(PYTEST) tests/kubernetes/test_worker_image.py $(ARGS)

# Those that look at pages in a Chromium, which has to be installed.
test-browser: $(READY)
	$(PYTEST) tests/browser $(ARGS)

# The seed of a course of chaos, any word: a new one each time without. SECONDS: so long things happen.
SECONDS ?= 60
BACKEND ?= local
# Numbers of events of the course: all others are left out.
EVENTS ?=
# After a violation, so many seconds a smaller course is looked for that shows it too.
SHRINK ?= 300

chaos: $(READY) $(if $(filter kubernetes,$(BACKEND)),testbed) ## faults and operations by chance on real jobs, judged by what they wrote: make chaos SECONDS=600 SEED=7
	$(BIN)/python -m tests.chaos --backend $(BACKEND) --seconds $(SECONDS) $(if $(filter command line,$(origin SEED)),--seed $(SEED)) $(if $(EVENTS),--events $(EVENTS)) --shrink $(SHRINK) $(ARGS)

kill-table: $(READY) ## for which steps of which levels a test kills worker or server, on which backend
	@$(BIN)/python -m tests.workflows.ended.kill_table

demo: $(READY) ## watch a job survive three faults; to look around: make demo ARGS=--keep
	$(BIN)/python examples/demo.py $(ARGS)

demo-kubernetes: testbed ## the demo in a real Kubernetes cluster of this machine, built first; as root
	$(BIN)/python -m examples.demo_kubernetes $(ARGS)

bench: $(READY) ## run the benchmarks; one of them: make bench ARGS=restart
	$(BIN)/python benchmarks/run.py $(ARGS)

# What cannot be installed or built here is a line of the output that says so.
bench-peers: .venv-peers/.ready ## compare with other launchers and JobSet, 22 minutes; less: make bench-peers ARGS="--rounds 1 --rows crash"
	-@test -x $(NEWEST)/ft_launcher || $(MAKE) --no-print-directory newest-peers
	-@$(BIN)/python -m tests.testbed.build >/dev/null && $(BIN)/python -m benchmarks.peers.build
	$(BIN)/python -m benchmarks.peers $(ARGS)

.venv-peers/.ready: $(READY) constraints-torch.txt benchmarks/peers/requirements-nvrx.txt benchmarks/peers/requirements-torchft.txt
	$(PYTHON) -m venv .venv-peers
	$(BIN)/uv pip install --quiet --python .venv-peers/bin/python -r constraints-torch.txt
	-$(BIN)/uv pip install --quiet --python .venv-peers/bin/python -r benchmarks/peers/requirements-nvrx.txt
	-$(BIN)/uv pip install --quiet --python .venv-peers/bin/python -r benchmarks/peers/requirements-torchft.txt
	@touch $@

# A Python 3.12, which the newest peers need.
PYTHON312 ?= python3.12
NEWEST := .venv-peers-3.12/bin

# Its wheel names a newer C library than some machines have, for a part that profiles GPUs.
newest-peers: $(READY)
	$(PYTHON312) -m venv .venv-peers-3.12
	$(BIN)/uv pip install --quiet --python $(NEWEST)/python --python-platform x86_64-manylinux_2_39 \
		-r constraints-torch.txt -r benchmarks/peers/requirements-3.12.txt

docs: $(READY) ## write docs/playbook.md, faults.md and document.md from the tables of the code, benchmarks.md from what was measured
	$(BIN)/python -m docs.write_playbook
	$(BIN)/python -m docs.write_faults
	$(BIN)/python -m docs.write_document
	$(BIN)/python -m docs.write_benchmarks

recording: $(READY) ## run the demo, and draw what it prints as the moving picture of README
	$(BIN)/python -m docs.record_demo

site: $(READY) ## build the pages as a site, build/site/site/index.html, and check its links
	$(BIN)/python -m docs.build_site build/site

histories: $(READY) ## record the histories that tests/replay replays
	$(BIN)/python -m tests.replay.record $(ARGS)

wheel: $(READY) ## build dist/everstep-*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .

agent: $(READY) ## build dist/agent.pyz, the first process of a pod
	$(BIN)/python -m everstep.agent.build dist/agent.pyz

release: $(READY) ## build dist/release: wheel, sdist, agent, train library, chart, bill of materials, sums
	rm -rf dist/release
	$(BIN)/python -m release dist/release

constraints: $(READY) ## pin the newest versions that pyproject.toml allows, with their hashes
	$(COMPILE) --extra dev --extra site --extra telemetry --extra kubernetes -o constraints.txt
	$(COMPILE) --extra torch -c constraints.txt -o constraints-torch.txt
	$(COMPILE) --extra telemetry --extra kubernetes -c constraints.txt -o deploy/requirements.txt
	echo hatchling | $(subst pyproject.toml,-,$(COMPILE)) -c constraints.txt -o deploy/requirements-build.txt

audit: ## look for known vulnerabilities in all that is pinned; its data is in the public index
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.9,<3'
	@.venv-audit/bin/pip-audit --strict --disable-pip --require-hashes -r constraints.txt -r deploy/requirements.txt || { \
		echo "audit: a package above is vulnerable, or the public index could not be reached and nothing was audited" >&2; exit 1; }

clean: ## remove everything that was made here
	rm -rf .venv .venv-torch .venv-peers .venv-peers-3.12 .venv-audit build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
