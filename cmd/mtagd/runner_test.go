package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// job is a command for a runner.
type job struct {
	Args        []string // after "mtagd"
	Dir         string   // the working directory, if it is not that of the tests
	Environment []string // in addition to that of the tests
	Want        int      // the exit code that is expected
}

// output is what a command has printed, and its exit code.
type output struct {
	Stdout, Stderr string
	Code           int
}

// mtagd runs a command. A process for each takes long, so most run in one that has run others.
func mtagd(j job) (done output, err error) {
	j.Environment = append(os.Environ(), j.Environment...)
	if j.Dir == "" {
		if j.Dir, err = os.Getwd(); err != nil {
			return done, err
		}
	}
	// These commands change their process, but not before they find that the command line is wrong.
	if len(j.Args) > 0 && slices.Contains([]string{"serve", "dev", "backup"}, j.Args[0]) && j.Want != exitUsage {
		var stdout, stderr strings.Builder
		cmd := exec.Command("mtagd", j.Args...)
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = j.Dir, j.Environment, &stdout, &stderr
		err := cmd.Run()
		if exit, failed := errors.AsType[*exec.ExitError](err); failed {
			err, done.Code = nil, exit.ExitCode()
		}
		done.Stdout, done.Stderr = stdout.String(), stderr.String()
		return done, err
	}
	r, err := takeRunner()
	if err != nil {
		return done, err
	}
	const patience = 10 * time.Minute // only a command that hangs should take so long
	defer time.AfterFunc(patience, func() { _ = r.process.Kill() }).Stop()
	if err := errors.Join(r.jobs.Encode(j), r.outputs.Decode(&done)); err != nil {
		return done, fmt.Errorf("mtagd %s: %w", strings.Join(j.Args, " "), err)
	}
	idle.Lock()
	defer idle.Unlock()
	idle.runners = append(idle.runners, r)
	return done, nil
}

// runMtagd runs a command that must succeed, and decodes what it prints, unless answer is nil.
func runMtagd(answer any, args ...string) error {
	done, err := mtagd(job{Args: args})
	if err == nil && done.Code != exitDone {
		err = errors.New(done.Stderr)
	}
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal([]byte(done.Stdout), answer)
}

// runner is a process that runs commands, one after another, and ends with the tests.
type runner struct {
	process *os.Process
	jobs    *json.Encoder
	outputs *json.Decoder
}

// idle has the runners that have no job.
var idle struct {
	sync.Mutex
	runners []*runner
}

func takeRunner() (*runner, error) {
	idle.Lock()
	defer idle.Unlock()
	if last := len(idle.runners) - 1; last >= 0 {
		r := idle.runners[last]
		idle.runners = idle.runners[:last]
		return r, nil
	}
	cmd := exec.Command("mtagd-runner")
	cmd.Env = append(os.Environ(), "GORACE="+raceOptions+" halt_on_error=1") // then a race ends the runner, and its job fails
	cmd.Stderr = os.Stderr
	jobs, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	outputs, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &runner{cmd.Process, json.NewEncoder(jobs), json.NewDecoder(outputs)}, nil
}

// runJobs is the main function of a runner.
func runJobs() {
	jobs, outputs := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var j job
		if jobs.Decode(&j) != nil {
			return // the tests have ended
		}
		done, err := runJob(j)
		if err == nil {
			err = outputs.Encode(done)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "a runner:", err)
			os.Exit(1)
		}
	}
}

func runJob(j job) (output, error) {
	signal.Reset(syscall.SIGHUP) // which the command before has ignored in the end
	os.Clearenv()
	for _, variable := range j.Environment {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return output{}, err
		}
	}
	if err := os.Chdir(j.Dir); err != nil {
		return output{}, err
	}
	var stdout, stderr strings.Builder
	code := run(j.Args, &stdout, &stderr)
	return output{stdout.String(), stderr.String(), code}, nil
}
