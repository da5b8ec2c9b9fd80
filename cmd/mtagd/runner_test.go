package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// job is a command for a runner.
type job struct {
	Args        []string // after "mtagd"
	Dir         string   // the working directory
	Environment []string // in addition to that of the tests
	Fails       int      // the exit code that is expected, if not 0
}

// output is what a command has printed, and its exit code.
type output struct {
	Stdout, Stderr string
	Code           int
}

// mtagd runs a command. A process for each takes long, so most run in one that has run others.
func mtagd(j job) (done output, err error) {
	if slices.Contains([]string{"serve", "dev", "backup"}, append(j.Args, "")[0]) && j.Fails != exitUsage { // they change their process
		var stdout, stderr strings.Builder
		cmd := exec.Command("mtagd", j.Args...)
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = j.Dir, append(os.Environ(), j.Environment...), &stdout, &stderr
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
	cmd.Stderr = os.Stderr
	jobs, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	outputs, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &runner{json.NewEncoder(jobs), json.NewDecoder(outputs)}, cmd.Start()
}

// runJobs is the main function of a runner.
func runJobs() {
	jobs, outputs := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	environment := os.Environ()
	for {
		var j job
		if jobs.Decode(&j) != nil {
			return // the tests have ended
		}
		done, err := runJob(j, environment)
		if err == nil {
			err = outputs.Encode(done)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "a runner:", err)
			os.Exit(1)
		}
	}
}

func runJob(j job, environment []string) (output, error) {
	os.Clearenv()
	for _, variable := range slices.Concat(environment, j.Environment) {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return output{}, err
		}
	}
	if j.Dir != "" {
		if err := os.Chdir(j.Dir); err != nil {
			return output{}, err
		}
	}
	var stdout, stderr strings.Builder
	code := run(j.Args, &stdout, &stderr)
	return output{stdout.String(), stderr.String(), code}, nil
}
