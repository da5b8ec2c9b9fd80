package store

import "time"

// DNSVerdict says whether the DNS of a tag host is correct.
type DNSVerdict string

// The verdicts, and the HTTP status of verify for each.
const (
	DNSCorrect     DNSVerdict = "correct"     // the host leads to the CNAME target: 200
	DNSPending     DNSVerdict = "pending"     // some servers lack the record, or none gives a usable answer: 422
	DNSWrong       DNSVerdict = "wrong"       // the record is missing or leads elsewhere: 400
	DNSUnreachable DNSVerdict = "unreachable" // no resolver can be reached: 500
)

// IsCertain reports whether the verdict is known to be true: correct and wrong are certain. After the other verdicts
// nobody knows where the host leads, so what was known before still counts.
func (v DNSVerdict) IsCertain() bool { return v == DNSCorrect || v == DNSWrong }

// DNSFinding is the result of a DNS check of a tag host: the verdict, its cause as a code for programs, and a
// sentence that tells the merchant what to change.
type DNSFinding struct {
	Verdict   DNSVerdict `json:"verdict"`
	Code      string     `json:"code"`   // in snake case, such as "no_record"
	Detail    string     `json:"detail"` // one English sentence without internals
	CheckedAt time.Time  `json:"checkedAt"`
}
