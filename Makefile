# Start with make run and make test. CI runs make check.

GO ?= go
FUZZTIME ?= 20s

.PHONY: run build size needs test again quick drills chaos check format vet staticcheck tidy generated fuzz fuzz-json vuln cc chromium firefox bind nginx postgres pgbouncer promtool bench bench-quick bench-full bench-postgres bench-postgres-full bench-steps bench-tag mtagbench screenshot screenshots profile clients node frameworks keep-script release shells gnuplot

# A first run does not need the profile, with which the compiler works longer.
run:
	CGO_ENABLED=0 $(GO) build -pgo=off -trimpath -ldflags "-s -w" -o bin/mtagd ./cmd/mtagd
	bin/mtagd dev

# Without the symbol table and the data of debuggers. Traces and pprof do not need them.
build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o bin/mtagd ./cmd/mtagd

# Everything that is published, in bin/release: static binaries, deb and rpm packages and a container image for two architectures, the
# TypeScript client, a list of modules, and checksums. It needs no Docker, and beyond modules and npm packages no network.
release: node
	$(GO) run -C tools ./release
	cd partnerapi/client/typescript && npm pack --silent --pack-destination $(CURDIR)/bin/release
	cd bin/release && sha256sum mtagd-* >SHA256SUMS && cat SHA256SUMS

# Each of these programs is needed by some tests: browsers for the browser tag and the console, nginx, BIND, PostgreSQL and PgBouncer,
# promtool for the alert rules, gnuplot for the chart of the bench, Node.js for the TypeScript client and the console, shells for completion, a C compiler for the race detector. As root on
# Debian, needs installs them. Elsewhere make test skips the tests, and names at its end what was missing. With CI=true, which make check
# sets, nothing may be missing.
needs: cc chromium firefox bind nginx postgres pgbouncer promtool node shells gnuplot

# Tests often wait for browsers or servers, so four packages run at a time on a machine with two cores; with more, they would
# get in each other's way. FIRST are the packages that take longest: if they started last, one core would be idle at the end.
#
# The race detector makes a test five to ten times as expensive, so it is on only where goroutines meet. It is off
#   for PLAIN: packages that test another process, or send one request after the other, or only measure;
#   for DRILL_TESTS: tests of the packages DRILLED that damage, kill, compare or compute, in one goroutine. The race detector skips
#   them (testenv.Drill);
#   for COMMANDS: tests of PROGRAM that send it one command or request after the other, or run other programs, such as PostgreSQL or
#   promtool. Its other tests, such as load tests, use it.
PROGRAM = ./cmd/mtagd
FIRST = $(PROGRAM) ./store/storetest ./store/postgres ./partnerapi/delivery ./store/local
PLAIN = mtagd/edge/sdk mtagd/partnerapi/console mtagd/partnerapi/openapi mtagd/bench/tags
DRILL_TESTS = ^TestDrill|Allocates$$|^TestConformance$$/./^(Listing|Summary)$$
DRILLED = $(sort $(dir $(shell grep -rlE 'testenv\.(Drill|Race)' --include='*_test.go' --exclude-dir=node_modules .)))
COMMANDS = ^Test(Scripts|Release|AFullDisk|Doctor|Dev.*|Demo.*|InstallGuide|InitRefuses|ReadmeCommands|Completion|ManPages|Browser.*|ConsoleOverTLS|Guides|MetricsOfGuides.*|SocketsThat.*|Cluster|ANodeThatIsKilled.*|OneAddressStores.*|TheStoreMust.*|TagReadShows.*|Preverify.*|PlainHTTPRedirects.*|ServeWarns.*|UnderSystemd|Unit.*|DockerfileHealthCheck|ExampleConfiguration|KubernetesManifests|ComposeFile|DeployScripts|AlertRules|AlertsFile|Dashboard|TheMemoryLimit.*|AllThreads.*)$$
RACE = $(shell command -v $$($(GO) env CC) >/dev/null && echo -race)

# On a disk, tests would mostly wait for syncs. So their directories are in /dev/shm, if that has 4 GB left and may run programs.
# A FUSE file system stands in for a disk that fails. The test binaries are large, and stay on disk (GOTMPDIR). T.TempDir
# would use GOTMPDIR, too, so the tests run without it. Without atexit_sleep_ms, the race detector would sleep for a second at
# the end of each. With no_huge_pages_for_shadow=0, its memory comes in large pages: on a virtual machine, each page costs it
# some microseconds. -pgo=off ignores the profile in cmd/mtagd: with it, every package would be compiled twice. -vet=off,
# because vet looks at everything.
# -ldflags=-w, because linking is much faster without tables for a debugger. With -trimpath, and without cgo where the
# race detector is off, packages are compiled as in TestRelease and in other clones: the cache has them already.
MEMORY = $(shell if test "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 2>/dev/null && ! grep -q ' /dev/shm .*noexec' /proc/mounts; \
	then echo /dev/shm; else echo "$${TMPDIR:-/tmp}"; fi)

GO_ENV = GORACE="atexit_sleep_ms=50 no_huge_pages_for_shadow=0" GOTMPDIR=$(or $(TMPDIR),/tmp) TMPDIR=$(MEMORY) GOFLAGS="$$($(GO) env GOFLAGS) -trimpath -pgo=off"
TEST_FLAGS = -vet=off -ldflags=-w -timeout 30m -exec 'env -u GOTMPDIR'
TEST = CGO_ENABLED=0 $(GO_ENV) $(GO) test $(TEST_FLAGS)
TEST_RACE = $(if $(RACE),$(GO_ENV) $(GO) test $(RACE) $(TEST_FLAGS),$(TEST))

# Every test. The file in the variable SKIPPED gets what was missing (package testenv). go list compiles what the two runs without the race
# detector share: side by side, both would compile it.
test: needs
	@out=$$(mktemp -d) && trap 'rm -r $$out' EXIT && export SKIPPED=$$out/skipped && { \
	{ CGO_ENABLED=0 $(GO_ENV) $(GO) list -export -test -deps $(PLAIN) $(PROGRAM) $(DRILLED) >$$out/compiled 2>&1; \
	{ $(TEST) -p 1 $(PLAIN) || touch $$out/failed; } & \
	{ $(TEST) -p 1 -run '$(DRILL_TESTS)|$(COMMANDS)' $(PROGRAM) $(DRILLED) || touch $$out/failed; }; wait; } & \
	$(TEST_RACE) -p 2 -skip '$(COMMANDS)' $(FIRST) $(filter-out $(PLAIN),$(shell $(GO) list ./...)) || touch $$out/failed; \
	wait; } | tee $$out/log; \
	echo "What took longest, in seconds:"; awk '($$1 == "ok" || $$1 == "FAIL") && $$3 ~ /s$$/ { print $$3, $$2 }' $$out/log | sort -rn | head -n 10; \
	test -n "$(RACE)" || echo "no C compiler: the race detector was off" >>$$out/skipped; \
	if test -e $$out/skipped; then echo "Tests that were skipped, and why:"; sort $$out/skipped | uniq -c; fi; \
	! test -e $$out/failed

# The tests of PACKAGES once more, with and without the race detector, one package at a time. CI runs it for what failed.
again:
	$(TEST_RACE) -count=1 -p 1 $(PACKAGES)
	$(TEST) -count=1 -p 1 -run '$(DRILL_TESTS)|$(COMMANDS)' $(PACKAGES)

# The drills of make test, at DRILLS times as many random places. A drill that fails prints its seed, which DRILL_SEED repeats.
# As root, with DRILL_MOUNT=1, the power cuts are also of ext4 and xfs, which are mounted from images in TMPDIR.
drills: export DRILLS ?= 20
drills:
	$(TEST) -count=1 -timeout 0 -v -run '^TestDrill' $(DRILLED)

# What takes a minute or two while one works: no browser, no server, no drill, no race detector.
quick:
	$(TEST) -short -p 4 -parallel 8 ./...

check: export CI = true
check: needs format vet staticcheck tidy generated size fuzz-json test

format:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; }

# Compiled as in TEST, so that packages are compiled once for all.
vet:
	CGO_ENABLED=0 $(GO_ENV) $(GO) vet ./...
	$(GO) vet -C partnerapi/client/go ./...
	$(GO) vet -C tools ./...

staticcheck:
	CGO_ENABLED=0 $(GO_ENV) $(GO) tool -modfile=tools/go.mod staticcheck ./...

# If a package looks up a method by a name that is no constant, as text/template does, the linker keeps all exported methods
# of the program, 6 MB. go build -ldflags=-dumpdep marks such functions with <ReflectMethod>.
size: build
	@size=$$(wc -c < bin/mtagd); test $$size -le 36000000 || { echo "bin/mtagd has $$size bytes, more than 36 MB"; exit 1; }

tidy:
	$(GO) mod tidy -diff
	cd partnerapi/client/go && $(GO) mod tidy -diff
	cd tools && $(GO) mod tidy -diff

GENERATED = $(sort edge/sdk/loader.js $(wildcard edge/sdk/extras/*.js)) $(wildcard partnerapi/openapi/openapi.json*) partnerapi/client/go/client.gen.go $(wildcard partnerapi/console/dist/*)

generated: node
	@before=$$(cksum $(GENERATED)); $(GO) generate ./... && $(GO) generate -C partnerapi/client/go; \
	test "$$before" = "$$(cksum $(GENERATED))" || { echo "$(GENERATED): one was out of date. They have been rebuilt."; exit 1; }

# Runs each fuzz target in turn, for FUZZTIME.
fuzz:
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

# Compares the decoder of events with encoding/json: a minute on two idle cores. It counts bodies, because up to Go 1.26 a run
# that ends at a time sometimes fails with "context deadline exceeded" (go.dev/issue/75804).
fuzz-json:
	$(GO) test -pgo=off -vet=off -run '^$$' -fuzz '^FuzzDecode$$' -fuzztime 500000x -fuzzminimizetime 1000x ./edge/tag/eventjson

# Makes servers of PostgreSQL, nodes and the network between them fail at random for CHAOSTIME, while clients count what they are told.
# Prints the seed, which CHAOSFLAGS='-chaosseed N' repeats.
CHAOSTIME ?= 10m
chaos: postgres
	TMPDIR=$(MEMORY) $(GO) test -pgo=off -count=1 -v -timeout 0 -run 'TestChaos$$' ./cmd/mtagd -chaos $(CHAOSTIME) $(CHAOSFLAGS)

# Measures mtagd and, for comparison, fasthttp with a synced file, on loopback. Writes a table and a chart to bench/results;
# bench/README.md explains them. bench takes about five minutes. bench-quick takes one, and writes to bin/results.
# bench-full takes half an hour: it has 10,000,000 events, for which the targets are set.
bench: build mtagbench gnuplot
	bin/mtagbench run $(BENCHFLAGS)

bench-quick: build mtagbench gnuplot
	bin/mtagbench run --out bin/results --events 100000 --merchants 10 --queries 50 --rounds 2 --round 1s --steady 5s $(BENCHFLAGS)

bench-full: build mtagbench gnuplot
	bin/mtagbench run --events 10000000 --queries 1000 --rounds 5 --round 5s --steady 10m $(BENCHFLAGS)

# Measures two nodes on PostgreSQL, with a primary and a synchronous standby, all on this machine, and a queue table beside
# them. bench-postgres takes about three minutes. bench-postgres-full takes about ten, and lists 10,000,000 events.
bench-postgres: build mtagbench postgres
	bin/mtagbench postgres $(BENCHFLAGS)

bench-postgres-full: build mtagbench postgres
	bin/mtagbench postgres --events 10000000 $(BENCHFLAGS)

# Measures single steps, each in one process. benchstat compares the output of two runs. ManyHosts, Compress and
# MadeUpNames are left out: they take minutes, and only help to choose between designs.
bench-steps:
	$(GO) test -run '^$$' -bench 'Mark|Directory|Record|Resolve|List|Deliver' -count $(or $(COUNT),6) ./bench

# Compares the browser tag with others, which it installs from npm into a temporary directory: about five minutes.
bench-tag: chromium
	$(GO) test -pgo=off -run '^$$' -bench . -benchtime 1x -timeout 0 ./bench/tags -args $(BENCHFLAGS)

mtagbench:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/mtagbench ./bench/mtagbench

# Takes the pictures of the console and the demo shop in the README.
screenshot: chromium
	$(GO) test -pgo=off -count=1 -run 'TestDemoShop$$|TestConsoleScreenshot' ./cmd/mtagd -screenshot $(CURDIR)/cmd/mtagd/demo

# Takes the pictures of the console in its guide.
screenshots: chromium node
	$(GO) test -pgo=off -count=1 -run 'TestScreenshots$$' ./partnerapi/console -screenshots $(CURDIR)/partnerapi/console/screenshots

# Generates the clients of the partner API again, after a change of partnerapi/openapi/openapi.yaml.
clients: node
	$(GO) generate -C partnerapi/client/go
	cd partnerapi/client/typescript && npm run --silent generate

# Takes a CPU profile of the server under load, with which the compiler optimises mtagd. Take a new one after large changes
# to the hot path: with an old profile mtagd is slower, but still correct.
profile: build mtagbench
	bin/mtagbench profile cmd/mtagd/default.pgo

# Looks for known vulnerabilities. Not part of check, because it needs vuln.go.dev, and check must pass on a machine that
# reaches only a module proxy.
vuln:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...

cc:
	@command -v $$($(GO) env CC) >/dev/null || $(call install,gcc libc6-dev,a C compiler for the race detector)

# Without windows, Chromium takes a fifth of the processor time. Only the whole browser has a back/forward cache.
chromium:
	@command -v chromium >/dev/null && command -v chromium-headless-shell >/dev/null || \
		$(call install,chromium chromium-headless-shell,Chromium to test the browser tag)

firefox:
	@command -v firefox-esr >/dev/null || $(call install,firefox-esr,Firefox to test the browser tag)

bind:
	@PATH="$$PATH:/usr/sbin" command -v named >/dev/null || $(call install,bind9,the name server BIND to test DNS verification)

# The packages of the TypeScript client and of the console in the browser, and SDKs that tests compare with.
node:
	@command -v npm >/dev/null || $(call install,nodejs npm,Node.js to test the TypeScript client and to build the console)
	@for folder in partnerapi/client/typescript partnerapi/console/app partnerapi/delivery/testdata/sdk; do ( cd $$folder && \
		test node_modules/.package-lock.json -nt package-lock.json || npm ci --silent --no-audit --no-fund ) || $(optional); done

# Builds the projects of the browser tag's guide, for the frameworks that it names, and drives them: a few minutes.
frameworks: node chromium
	@mkdir -p bin/frameworks && cp -r edge/sdk/npm/examples/. bin/frameworks
	@for folder in bin/frameworks/*/; do ( cd $$folder && npm install --silent --no-audit --no-fund --no-package-lock && \
		rm -rf node_modules/@mtagd && mkdir node_modules/@mtagd && cp -r ../../../edge/sdk/npm node_modules/@mtagd/tag ) || exit 1; done
	$(TEST) -count=1 -run 'Frameworks' ./edge/sdk -frameworks $(CURDIR)/bin/frameworks

# Keeps the present scripts of the browser tag for ever, under /script/VERSION: for a release.
keep-script:
	@version=$$(cat edge/sdk/loader.js edge/sdk/extras/*.js | sha256sum | cut -c 1-16) && mkdir -p edge/sdk/kept/$$version/extras && \
		cp edge/sdk/loader.js edge/sdk/kept/$$version && cp edge/sdk/extras/*.js edge/sdk/kept/$$version/extras

nginx:
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || $(call install,nginx-light,nginx to test the guide for sites)

shells:
	@command -v zsh >/dev/null && command -v fish >/dev/null && command -v rpm >/dev/null || $(call install,zsh fish rpm groff-base,zsh and fish to test completion and rpm to test packages)

gnuplot:
	@command -v gnuplot >/dev/null || $(call install,gnuplot-nox,gnuplot to draw the chart of the bench)

# Debian's package would make a database cluster and run it, unless it is told not to. The tests make their own.
postgres:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || { \
		test "$$(id -u)" != 0 || test -e /etc/postgresql-common/createcluster.conf || { \
			mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf; }; \
		$(call install,postgresql-15,PostgreSQL to test the engine that uses it); }

pgbouncer:
	@PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null || $(call install,pgbouncer,PgBouncer to test connections through it)

# Takes only the tool out of Debian's package: installed, the package would run a server.
promtool:
	@command -v promtool >/dev/null || test -x bin/promtool || { \
		mkdir -p bin/prometheus && cd bin/prometheus && \
		{ test "$$(id -u)" != 0 || apt-get update -qq; } && apt-get download -qq prometheus && \
		dpkg-deb -x prometheus_*.deb . && mv usr/bin/promtool .. && cd .. && rm -r prometheus; \
	} || { echo "Missing: promtool to test the alert rules. Put it into PATH, from prometheus.io." >&2; $(optional); }

# $(call install,PACKAGES,PURPOSE) installs Debian packages as root. Otherwise it says what is missing.
install = { \
	command -v apt-get >/dev/null && test "$$(id -u)" = 0 && \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1) >/dev/null || { \
		echo "Missing: $(2). Install $(1) (Debian: sudo apt-get install $(1))." >&2; $(optional); }; }

# Fails only if nothing may be missing.
optional = test "$$CI" != true
