package store

import "time"

// DNSVerdict is what a look at a tag host's DNS comes to.
type DNSVerdict string

// The verdicts, and what verify answers to each.
const (
	DNSCorrect     DNSVerdict = "correct"     // the host reaches the CNAME target: 200
	DNSPending     DNSVerdict = "pending"     // not everywhere yet, or no answer that settles it: 422
	DNSWrong       DNSVerdict = "wrong"       // missing, or points elsewhere: 400
	DNSUnreachable DNSVerdict = "unreachable" // no resolver could be asked at all: 500
)

// DNSFinding is the outcome of a look at a tag host's DNS: a verdict, its cause in a code for
// programs, and a sentence that tells the merchant what to change.
type DNSFinding struct {
	Verdict   DNSVerdict `json:"verdict"`
	Code      string     `json:"code"`   // one snake_case word group, such as "no_record"
	Detail    string     `json:"detail"` // one English sentence without internals
	CheckedAt time.Time  `json:"checkedAt"`
}
