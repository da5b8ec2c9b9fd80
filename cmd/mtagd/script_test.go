package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs testdata/*.txtar. The scripts are exchanges with a real service, as a partner sees them. In addition
// to the commands of testscript they use:
//
//	mtagd ARGUMENT...            run a command of mtagd
//	serve [FLAG...]              start the service on $DATA, also after a shutdown or a crash
//	shutdown [SIGHUP]            end it with SIGTERM or with SIGHUP; it must exit with 0
//	crash                        end it with SIGKILL
//	partner NAME                 make a partner, and send its API key from now on; $NAME is its id, $NAME_KEY its key
//	as NAME | as nobody          send this partner's API key, or none, with the api command
//	with HEADER: VALUE           add a header to the next request; an empty VALUE removes the header
//	api METHOD PATH [BODY]       a request to the base host
//	tag METHOD PATH [BODY]       a request to the client tag host
//	on HOST METHOD PATH [BODY]   a request to another host
//	admin PATH                   a GET request to the admin address
//	until N COMMAND ...          repeat a request (api, tag or on) until the answer has status N; "! until": 300 times, and
//	                             it never has
//	status N                     the answer's status
//	error N CODE [TEXT]          status and standard error body; TEXT is part of the message
//	json PATH VALUE              a value of the answer's JSON; "PATH ~ REGEXP", "PATH -> VARIABLE", "PATH -> VARIABLE REGEXP"
//	                             for what is in parentheses;
//	                             PATH is .a.b[0]; .a.length is the length of a list or the size of an object
//	! json PATH                  there is no such value
//	printed PATH ...             the same for what the last command printed
//	header NAME VALUE            a header of the answer; "NAME ~ REGEXP", "NAME -> VARIABLE REGEXP"
//	! header NAME                there is no such header
//	body TEXT                    the whole body; "~ REGEXP"
//	dns NAME TYPE VALUE          set the record of a name in the service's DNS; "dns NAME also TYPE VALUE" adds one;
//	                             "dns NAME" removes all; "dns NAME servfail|bogus|refuse|silent" makes the name fail;
//	                             "dns @ADDRESS NAME ..." does it at a zone's name server, which listens on $DNSPORT
//	fails CODE ARGUMENT...       mtagd exits with CODE, one line on standard error and nothing on standard output
//	says TEXT                    the line contains TEXT
//	log REGEXP                   the service's log has a match; "! log": it has none
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			resolver, err := startZone()
			if err != nil {
				return err
			}
			w := &world{zone: resolver, nameServers: map[string]*zone{}, keys: map[string]string{}, header: http.Header{}}
			env.Values[worldKey{}] = w
			env.Defer(func() {
				resolver.stop()
				for _, server := range w.nameServers {
					server.stop()
				}
				if w.service == nil || w.service.ended {
					return
				}
				if err := w.service.stop(); err != nil {
					env.T().Fatal(err)
				}
			})
			env.Setenv("GORACE", raceOptions)
			env.Setenv("DATA", filepath.Join(env.WorkDir, "data"))
			env.Setenv("RESOLVER", resolver.address)
			_, port, err := net.SplitHostPort(resolver.address)
			if err != nil {
				return err
			}
			env.Setenv("DNSPORT", port)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"mtagd":    cmdMtagd,
			"serve":    cmdServe,
			"shutdown": cmdShutdown,
			"crash":    cmdCrash,
			"partner":  cmdPartner,
			"as":       cmdAs,
			"with":     cmdWith,
			"api":      cmdAPI,
			"tag":      cmdTag,
			"admin":    cmdAdmin,
			"on":       cmdOn,
			"until":    cmdUntil,
			"status":   cmdStatus,
			"error":    cmdError,
			"json":     cmdJSON,
			"printed":  cmdPrinted,
			"header":   cmdHeader,
			"body":     cmdBody,
			"dns":      cmdDNS,
			"fails":    cmdFails,
			"says":     cmdSays,
			"log":      cmdLog,
		},
	})
}

// world is what a script's commands share.
type world struct {
	zone        *zone
	nameServers map[string]*zone // by address
	service     *service
	keys        map[string]string // API keys by partner name
	as          string
	header      http.Header // of the next request
	answer      answer
}

type worldKey struct{}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

// arguments fails the script unless the command was given at least n arguments.
func arguments(ts *testscript.TestScript, neg bool, args []string, n int) {
	if neg || len(args) < n {
		ts.Fatalf("wrong use of this command: see TestScripts")
	}
}

func cmdMtagd(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, false, args, 1)
	if code := runCommand(ts, args, exitDone).Code; (code != exitDone) != neg {
		ts.Fatalf("exit code %d", code)
	}
}

// passedVariables are the environment variables of a script that its commands get.
var passedVariables = regexp.MustCompile(`\b(HOME|TMPDIR|MTAGD_\w+)\b`)

// runCommand runs a command for a script. code is the exit code that the script expects.
func runCommand(ts *testscript.TestScript, args []string, code int) output {
	script, err := os.ReadFile(filepath.Join("testdata", ts.Name()+".txtar"))
	ts.Check(err)
	var environment []string
	for _, name := range passedVariables.FindAllString("HOME TMPDIR "+string(script), -1) {
		environment = append(environment, name+"="+ts.Getenv(name))
	}
	done, err := mtagd(job{Args: args, Dir: ts.MkAbs("."), Environment: environment, Want: code})
	ts.Check(err)
	io.WriteString(ts.Stdout(), done.Stdout)
	io.WriteString(ts.Stderr(), done.Stderr)
	return done
}

func cmdServe(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 0)
	w := worldOf(ts)
	service, err := startService(ts.Getenv("DATA"), w.zone.address, args...)
	ts.Check(err)
	w.service = service
	ts.Setenv("HTTP", service.http)
	ts.Setenv("ADMIN", service.admin)
}

func cmdShutdown(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 0)
	if len(args) == 1 && args[0] == "SIGHUP" {
		ts.Check(worldOf(ts).service.stopBy(syscall.SIGHUP))
		return
	}
	ts.Check(worldOf(ts).service.stop())
}

func cmdCrash(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 0)
	ts.Check(worldOf(ts).service.kill())
}

func cmdPartner(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1)
	w, name := worldOf(ts), args[0]
	id, key, err := newPartner(ts.Getenv("DATA"), name)
	ts.Check(err)
	w.keys[name], w.as = key, name
	ts.Setenv(strings.ToUpper(name), id)
	ts.Setenv(strings.ToUpper(name)+"_KEY", key)
}

func cmdAs(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1)
	w := worldOf(ts)
	if _, ok := w.keys[args[0]]; !ok && args[0] != "nobody" {
		ts.Fatalf("there is no partner %s", args[0])
	}
	w.as = args[0]
}

func cmdWith(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1)
	name := strings.TrimSuffix(args[0], ":")
	value := strings.Join(args[1:], " ")
	if value == "" {
		worldOf(ts).header[http.CanonicalHeaderKey(name)] = nil
		return
	}
	worldOf(ts).header.Add(name, value)
}

func cmdAPI(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 2)
	w := worldOf(ts)
	send(ts, w, baseHost, w.keys[w.as], args)
}

func cmdTag(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 2)
	send(ts, worldOf(ts), tagHost, "", args)
}

func cmdOn(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 3)
	send(ts, worldOf(ts), args[0], "", args[1:])
}

func cmdAdmin(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1)
	w := worldOf(ts)
	request, err := http.NewRequest(http.MethodGet, "http://"+w.service.admin+args[0], nil)
	ts.Check(err)
	request.Header = w.header
	w.header = http.Header{}
	resp, err := http.DefaultClient.Do(request)
	ts.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	ts.Check(err)
	w.answer = answer{resp.StatusCode, resp.Header, body}
}

func send(ts *testscript.TestScript, w *world, host, key string, args []string) {
	var err error
	w.answer, err = w.service.do(http.DefaultClient, request{
		host: host, method: args[0], path: args[1], key: key,
		body: strings.Join(args[2:], " "), header: w.header,
	})
	ts.Check(err)
	w.header = http.Header{}
	ts.Logf("[%d] %s", w.answer.status, w.answer.body)
}

func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, false, args, 4)
	w := worldOf(ts)
	request := map[string]func(*testscript.TestScript, bool, []string){"api": cmdAPI, "tag": cmdTag, "on": cmdOn}[args[1]]
	tries := 10_000
	if neg {
		tries = 300
	}
	for range tries {
		if request(ts, false, args[2:]); strconv.Itoa(w.answer.status) == args[0] {
			if neg {
				ts.Fatalf("status is %s", args[0])
			}
			return
		}
	}
	if !neg {
		ts.Fatalf("status is never %s", args[0])
	}
}

func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1)
	if got := worldOf(ts).answer.status; strconv.Itoa(got) != args[0] {
		ts.Fatalf("status is %d, want %s", got, args[0])
	}
}

// cmdError checks the spec's standard error body (spec, Errors: formats, 1).
func cmdError(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 2)
	cmdStatus(ts, false, args[:1])
	var got map[string]any
	ts.Check(json.Unmarshal(worldOf(ts).answer.body, &got))
	message, _ := got["message"].(string)
	if len(got) != 3 || got["code"] != args[1] || fmt.Sprint(got["statusCode"]) != args[0] || message == "" {
		ts.Fatalf("not the standard body of %s %s: %v", args[0], args[1], got)
	}
	if text := strings.Join(args[2:], " "); !strings.Contains(message, text) {
		ts.Fatalf("message %q does not say %q", message, text)
	}
}

func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	checkJSON(ts, neg, worldOf(ts).answer.body, args)
}

func cmdPrinted(ts *testscript.TestScript, neg bool, args []string) {
	checkJSON(ts, neg, []byte(ts.ReadFile("stdout")), args)
}

func checkJSON(ts *testscript.TestScript, neg bool, document []byte, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: json PATH [VALUE | ~ REGEXP | -> VARIABLE]")
	}
	got, found, err := lookUp(document, args[0])
	ts.Check(err)
	switch {
	case neg && len(args) == 1:
		if found {
			ts.Fatalf("%s is there: %s", args[0], got)
		}
	case neg || len(args) == 1:
		ts.Fatalf("wrong use of this command: see TestScripts")
	case !found:
		ts.Fatalf("there is no %s", args[0])
	default:
		compare(ts, args[0], got, args[1:])
	}
}

// compare checks a text against "VALUE" or "~ REGEXP", or stores it with "-> VARIABLE" or "-> VARIABLE REGEXP".
func compare(ts *testscript.TestScript, what, got string, want []string) {
	if want[0] == "->" && len(want) > 1 {
		if len(want) > 2 {
			pattern, err := regexp.Compile(want[2])
			ts.Check(err)
			groups := pattern.FindStringSubmatch(got)
			if len(groups) != 2 {
				ts.Fatalf("%s is %q, which does not match %s", what, got, pattern)
			}
			got = groups[1]
		}
		ts.Setenv(want[1], got)
		return
	}
	if want[0] == "~" {
		pattern := strings.Join(want[1:], " ")
		match, err := regexp.MatchString(pattern, got)
		ts.Check(err)
		if !match {
			ts.Fatalf("%s is %q, which does not match %s", what, got, pattern)
		}
		return
	}
	if value := strings.Join(want, " "); got != value {
		ts.Fatalf("%s is %q, want %q", what, got, value)
	}
}

// lookUp finds a value in a JSON document. A string is returned as it is, anything else as JSON.
func lookUp(document []byte, path string) (value string, found bool, err error) {
	var v any
	if err := json.Unmarshal(document, &v); err != nil {
		return "", false, fmt.Errorf("not JSON: %q", document)
	}
	found = true
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		switch at := v.(type) {
		case map[string]any:
			if step == "length" {
				v = len(at)
				continue
			}
			if v, found = at[step]; !found {
				return "", false, nil
			}
		case []any:
			if step == "length" {
				v = len(at)
				continue
			}
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(at) {
				return "", false, err
			}
			v = at[i]
		default:
			return "", false, nil
		}
	}
	if s, ok := v.(string); ok {
		return s, true, nil
	}
	text, err := json.Marshal(v)
	return string(text), true, err
}

func cmdHeader(ts *testscript.TestScript, neg bool, args []string) {
	values, found := worldOf(ts).answer.header[http.CanonicalHeaderKey(args[0])]
	switch {
	case neg && found:
		ts.Fatalf("there is a header %s: %q", args[0], values)
	case neg:
	case !found:
		ts.Fatalf("there is no header %s", args[0])
	default:
		compare(ts, args[0], strings.Join(values, ", "), args[1:])
	}
}

func cmdBody(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1)
	compare(ts, "body", strings.TrimSpace(string(worldOf(ts).answer.body)), args)
}

func cmdDNS(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1)
	w := worldOf(ts)
	z := w.zone
	if address, ok := strings.CutPrefix(args[0], "@"); ok {
		arguments(ts, neg, args, 2)
		if z = w.nameServers[address]; z == nil {
			var err error
			z, err = startNameServer(net.JoinHostPort(address, ts.Getenv("DNSPORT")))
			ts.Check(err)
			w.nameServers[address] = z
		}
		args = args[1:]
	}
	ts.Check(z.set(args[0], args[1:]...))
}

func cmdFails(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1)
	code, err := strconv.Atoi(args[0])
	ts.Check(err)
	done := runCommand(ts, args[1:], code)
	if done.Code != code {
		ts.Fatalf("exit status %d, want %d", done.Code, code)
	}
	if done.Stdout != "" {
		ts.Fatalf("printed %q", done.Stdout)
	}
	if said := done.Stderr; !strings.HasPrefix(said, "mtagd: ") || strings.Count(said, "\n") != 1 || !strings.HasSuffix(said, "\n") {
		ts.Fatalf("not one line that begins with the program's name: %q", said)
	}
}

func cmdSays(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1)
	if said, want := ts.ReadFile("stderr"), strings.Join(args, " "); !strings.Contains(said, want) {
		ts.Fatalf("said %q, want %q", said, want)
	}
}

// cmdLog waits until the log matches; with neg, it must not match now.
func cmdLog(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, false, args, 1)
	wanted, err := regexp.Compile(strings.Join(args, " "))
	ts.Check(err)
	match := wanted.MatchString(worldOf(ts).service.Log())
	for end := time.Now().Add(time.Minute); !match && !neg && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		match = wanted.MatchString(worldOf(ts).service.Log())
	}
	if match == neg {
		ts.Fatalf("log: %s", worldOf(ts).service.Log())
	}
}
