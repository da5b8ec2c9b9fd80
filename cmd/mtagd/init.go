package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"

	"mtagd/store/local/space"
)

// initCommand is "mtagd init". It has the flags of serve: those that are given go into the configuration.
type initCommand struct {
	Serve   serveCommand `embed:""`
	Write   string       `default:"/etc/mtagd.yaml" placeholder:"FILE" help:"The configuration to write. It must not exist yet (default ${default})."`
	Partner string       `default:"Partner" placeholder:"NAME" help:"Name of the first partner, for whom the link to the console is (default ${default})."`
	Force   bool         `help:"Write it although a check has found something that stops the service."`
	Start   bool         `default:"true" negatable:"" help:"Start the service with systemd, where that runs (default)."`
}

func (*initCommand) Help() string {
	return "It asks for what is not given by flags: the hosts, the address for the CA, where backups go. It checks DNS, ports, disk, clock and memory, " +
		"writes the configuration, starts the service, and prints a link to the console. Run it as root."
}

// question asks for the value of a flag that was not given.
type question struct {
	flag, ask string
	value     *string
	label     string // first label of the default, a sibling of the base host; empty: no default
	optional  bool
}

func (c *initCommand) questions() []question {
	return []question{
		{"base-host", "Host of the partner API and the console, such as api.example.com", &c.Serve.BaseHost, "", false},
		{"client-tag-host", "Host that all client-side tags share", &c.Serve.ClientTagHost, "tags", false},
		{"cname-target", "Host that merchants' CNAME records point at", &c.Serve.CNAMETarget, "cname", false},
		{"acme-email", "Email address for messages from the CA (may be empty)", &c.Serve.ACMEEmail, "", true},
		{"backup-to", "Where backups go: a directory on another disk, or s3://ENDPOINT/BUCKET/PREFIX (may be empty)", &c.Serve.BackupTo, "", true},
	}
}

func (c *initCommand) Run(p *process) error {
	if p.store != "" {
		return &usageError{where: p.origin.of("store"), err: errors.New("is not for mtagd init: see deploy/scale.md")}
	}
	if _, err := os.Stat(c.Write); !errors.Is(err, fs.ErrNotExist) {
		return &usageError{where: "--write", err: fmt.Errorf("%s is there already: change it, and run mtagd doctor", c.Write)}
	}
	if !p.origin.given("data") {
		p.data = usualData
	}
	if err := c.askAll(p); err != nil {
		return err
	}
	for _, dir := range []*string{&p.data, &c.Serve.BackupTo} { // the service runs in another directory
		if *dir != "" && !strings.Contains(*dir, "://") {
			absolute, err := filepath.Abs(*dir)
			if err != nil {
				return err
			}
			*dir = absolute
		}
	}
	if err := c.Serve.check(p.data, p.origin); err != nil {
		return err
	}
	if err := c.examine(p); err != nil {
		return err
	}
	if err := c.write(p, p.parsed.Selected().Flags); err != nil {
		return err
	}
	return c.finish(p)
}

// askAll asks for what the flags do not say. When the input ends, the defaults are used.
func (c *initCommand) askAll(p *process) error {
	answers := bufio.NewReader(os.Stdin)
	for _, q := range c.questions() {
		if *q.value != "" {
			continue
		}
		fmt.Fprint(p.stderr, q.ask)
		byDefault := ""
		if _, domain, ok := strings.Cut(c.Serve.BaseHost, "."); ok && q.label != "" {
			byDefault = q.label + "." + domain
			fmt.Fprintf(p.stderr, " [%s]", byDefault)
		}
		fmt.Fprint(p.stderr, ": ")
		line, err := answers.ReadString('\n')
		*q.value = cmp.Or(strings.TrimSpace(line), byDefault)
		if *q.value == "" && err != nil && !q.optional {
			fmt.Fprintln(p.stderr)
			return &usageError{where: "--" + q.flag, err: errors.New("is required: a host name")}
		}
	}
	return nil
}

// examine makes the checks of mtagd doctor that do not need an installation.
func (c *initCommand) examine(p *process) error {
	e := newExamination(p, &c.Serve)
	e.checkPorts()
	e.checkNames()
	e.checkMemory()
	e.checkCA()
	if free, err := space.Free(existing(p.data)); err == nil && free < leastDisk {
		e.found(checkNamed(checkDiskLow), float64(free), p.data)
	}
	e.print(p.stderr)
	if len(e.findings) > 0 && e.findings[0].urgency == page && !c.Force {
		return errors.New("nothing was written: correct what is above, or use --force")
	}
	return nil
}

// existing returns the nearest directory of a path that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// write writes the answers and the given flags, each with the first sentence of its help. The configuration may have
// secrets: only the service's user can read it.
func (c *initCommand) write(p *process, flags []*kong.Flag) error {
	var text strings.Builder
	fmt.Fprintf(&text, "# Written by mtagd init on %s. The keys are the flags of mtagd serve.\n", time.Now().UTC().Format(time.DateOnly))
	line := func(reason, key string, value any) error {
		written, err := yaml.Marshal(map[string]any{key: value})
		if err == nil {
			fmt.Fprintf(&text, "\n# %s.\n%s", reason, written)
		}
		return err
	}
	if err := line("Everything that the service keeps is here", "data", p.data); err != nil {
		return err
	}
	for _, flag := range flags {
		asked := slices.ContainsFunc(c.questions(), func(q question) bool { return q.flag == flag.Name && *q.value != "" })
		if own := []string{"write", "partner", "force", "start"}; !asked && !p.origin.given(flag.Name) || slices.Contains(own, flag.Name) {
			continue
		}
		if err := line(firstSentence(flag.Help), flag.Name, flag.Target.Interface()); err != nil {
			return err
		}
	}
	if err := os.WriteFile(c.Write, []byte(text.String()), 0o640); err != nil {
		return err
	}
	fmt.Fprintln(p.stderr, "wrote", c.Write)
	if service := serviceUser(); service != nil {
		return errors.Join(os.Chown(c.Write, 0, service.gid), os.Chmod(c.Write, 0o640))
	}
	return nil
}

// makeDir makes a directory that only the service's user can read. The user can reach it: directories above it that are
// missing are made, too, for everybody. Others may use a directory that exists, unless it is private: its mode stays.
func makeDir(path string, service *owner, private bool) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(path, 0o700)
	isNew := err == nil
	if !isNew && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if service == nil {
		return nil
	}
	if err := os.Chown(path, service.uid, service.gid); err != nil || !isNew && !private {
		return err
	}
	return os.Chmod(path, 0o700)
}

type owner struct{ uid, gid int }

// serviceUser returns the user of the package's unit. It is nil where there is none, and for others than root.
func serviceUser() *owner {
	found, err := user.Lookup("mtagd")
	if err != nil || os.Getuid() != 0 {
		return nil
	}
	uid, _ := strconv.Atoi(found.Uid) // on Unix both are numbers
	gid, _ := strconv.Atoi(found.Gid)
	return &owner{uid, gid}
}

// finish starts the service where systemd runs, and prints the console's link.
func (c *initCommand) finish(p *process) error {
	if err := c.prepareDirs(p.data); err != nil {
		return err
	}
	// A server that starts later knows the link.
	var made struct{ PartnerID, URL string }
	if err := c.asService(p, &made, "partner", "add", "--name", c.Partner); err != nil {
		return err
	}
	if err := c.asService(p, &made, "console", "link", "--partner", made.PartnerID, "--base-host", c.Serve.BaseHost); err != nil {
		return err
	}
	units := []string{"enable", "--now", "mtagd-http.socket", "mtagd-https.socket", "mtagd-admin.socket", "mtagd.service"}
	if _, err := os.Stat("/run/systemd/system"); err != nil || os.Getuid() != 0 || !c.Start { // nobody else may start services
		fmt.Fprintf(p.stderr, "Start the service: systemctl %s, or mtagd serve --config %s\n", strings.Join(units, " "), c.Write)
	} else if out, err := exec.CommandContext(p.ctx, "systemctl", units...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl: %w: %s", err, out)
	}
	fmt.Fprintln(p.stderr, "Sign in to the console, once, within 15 minutes:")
	_, err := fmt.Fprintln(p.stdout, made.URL)
	return err
}

const usualData = "/var/lib/mtagd" // StateDirectory= of the unit

// prepareDirs makes the directories of the data and of backups, and lets an installed unit write to them.
func (c *initCommand) prepareDirs(data string) error {
	dirs := []string{data}
	if to := c.Serve.BackupTo; to != "" && !strings.Contains(to, "://") {
		dirs = append(dirs, to)
	}
	defer syscall.Umask(syscall.Umask(0o022)) // with another one, the service's user might not reach them
	paths := ""
	for _, dir := range dirs {
		if err := makeDir(dir, serviceUser(), dir == data); err != nil {
			return err
		}
		if dir != usualData {
			paths += fmt.Sprintf("ReadWritePaths=-%q\n", dir)
		}
	}
	for _, unit := range []string{"/usr/lib/systemd/system/mtagd.service", "/etc/systemd/system/mtagd.service"} {
		if _, err := os.Stat(unit); err == nil && os.Getuid() == 0 && paths != "" {
			const dropIns = "/etc/systemd/system/mtagd.service.d"
			return errors.Join(os.MkdirAll(dropIns, 0o755), os.WriteFile(filepath.Join(dropIns, "paths.conf"), []byte("[Service]\n"+paths), 0o644))
		}
	}
	return nil
}

// asService runs an operator command with the rights of the service's user, who must own the data.
func (c *initCommand) asService(p *process, result any, arguments ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	command := append([]string{self, "--data", p.data}, arguments...)
	if serviceUser() != nil {
		command = append([]string{"setpriv", "--reuid=mtagd", "--regid=mtagd", "--clear-groups"}, command...)
	}
	cmd := exec.CommandContext(p.ctx, command[0], command[1:]...)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("mtagd %s: %w: %s", strings.Join(arguments, " "), err, failed.String())
	}
	return json.Unmarshal(out, result)
}
