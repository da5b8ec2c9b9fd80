package store

import (
	"hash/maphash"
	"strings"
	"testing"
	"time"
)

func TestAClaimsStateFollowsItsTag(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const week, month = 7 * 24 * time.Hour, 30 * 24 * time.Hour
	tag := NewTag(Merchant{ID: "m", Partner: "p"}, ServerSide, "mtag-ab12", "example.com", now)
	verified := tag.AfterVerify(DNSFinding{Verdict: DNSCorrect, CheckedAt: now})
	away := verified.AfterRecheck(DNSFinding{Verdict: DNSWrong, CheckedAt: now.Add(time.Hour)})
	for _, c := range []struct {
		is    string
		tag   Tag
		at    time.Duration
		state ClaimState
		free  bool
	}{
		{"a new claim", tag, 0, ClaimUnverified, false},
		{"a claim that is nearly a week old", tag, week - 1, ClaimUnverified, false},
		{"a claim that is a week old", tag, week, ClaimLapsed, true},
		{"a claim after DNS was wrong", tag.AfterVerify(DNSFinding{Verdict: DNSWrong, CheckedAt: now}), 0, ClaimUnverified, false},
		{"a verified claim", verified, 1000 * week, ClaimVerified, false},
		{"a claim elsewhere", away, time.Hour, ClaimElsewhere, false},
		{"a claim elsewhere for nearly 30 days", away, time.Hour + month - 1, ClaimElsewhere, false},
		{"a claim elsewhere for 30 days", away, time.Hour + month, ClaimElsewhere, true},
		{"a claim that is taken again", tag.LoseClaim().TakeClaim(now.Add(week)), week, ClaimUnverified, false},
	} {
		got := c.tag.Claim(now.Add(c.at))
		if got.State != c.state || got.Free(now.Add(c.at)) != c.free {
			t.Errorf("%s: %+v", c.is, got)
		}
		if got.Domain != "example.com" || got.Tag != tag.ID || got.Merchant != "m" || got.Partner != "p" || got.Host != tag.Host {
			t.Errorf("%s: %+v, tag %+v", c.is, got, tag)
		}
	}
}

func TestATagKnowsSinceWhenItsDNSLeadsElsewhere(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tag := NewTag(Merchant{ID: "m", Partner: "p"}, ServerSide, "mtag-ab12", "example.com", now)
	at := func(v DNSVerdict, hours int) DNSFinding {
		return DNSFinding{Verdict: v, CheckedAt: now.Add(time.Duration(hours) * time.Hour)}
	}
	tag = tag.AfterVerify(at(DNSWrong, 0))
	if !tag.ElsewhereSince.IsZero() {
		t.Errorf("a tag that was never verified is elsewhere since %v", tag.ElsewhereSince)
	}
	tag = tag.AfterVerify(at(DNSCorrect, 1))
	for _, step := range []struct {
		after func(Tag, DNSFinding) Tag
		found DNSFinding
		since int // hours; 0: not elsewhere
	}{
		{Tag.AfterRecheck, at(DNSCorrect, 2), 0},
		{Tag.AfterRecheck, at(DNSPending, 3), 0},
		{Tag.AfterRecheck, at(DNSWrong, 4), 4},
		{Tag.AfterRecheck, at(DNSWrong, 5), 4},
		{Tag.AfterVerify, at(DNSWrong, 6), 4},
		{Tag.AfterVerify, at(DNSUnreachable, 7), 4},
		{Tag.AfterRecheck, at(DNSCorrect, 8), 0},
		{Tag.AfterVerify, at(DNSWrong, 9), 9},
		{Tag.AfterVerify, at(DNSCorrect, 10), 0},
	} {
		var want time.Time
		if step.since > 0 {
			want = now.Add(time.Duration(step.since) * time.Hour)
		}
		if tag = step.after(tag, step.found); !tag.ElsewhereSince.Equal(want) {
			t.Errorf("after %s at %v: elsewhere since %v, want %v", step.found.Verdict, step.found.CheckedAt, tag.ElsewhereSince, want)
		}
	}

	// A tag of an earlier version is not connected, and nobody knows since when.
	tag.Connected, tag.ElsewhereSince = false, time.Time{}
	if got := tag.AfterRecheck(at(DNSPending, 20)); got != tag {
		t.Errorf("an uncertain finding changed %+v to %+v", tag, got)
	}
	if got := tag.AfterRecheck(at(DNSWrong, 21)); !got.ElsewhereSince.Equal(now.Add(21 * time.Hour)) {
		t.Errorf("after the first recheck that found DNS wrong the tag is %+v", got)
	}

	tag = tag.AfterVerify(at(DNSWrong, 22))
	if lost := tag.LoseClaim(); lost.Status() != Inactive || lost.Verified || !lost.ElsewhereSince.IsZero() || lost.DNS != nil ||
		lost.Lifecycle(now) != WaitingForDNS || lost.Host != tag.Host {
		t.Errorf("after it lost its claim the tag is %+v", lost)
	}
}

func TestClaimableNames(t *testing.T) {
	service := []string{"api.service.co.uk", "tags.service.com", "cname.mtagd.test", "127.0.0.1"}
	for name, want := range map[string]struct{ public, private bool }{
		"shop.com":                 {true, true},
		"shop.co.uk":               {true, true},
		"shop.com.ck":              {true, true}, // in the list as *.ck
		"shop.xn--p1ai":            {true, true},
		"myshop.github.io":         {true, true}, // a suffix of the list's private section
		"track.agency.de":          {true, true},
		"co.uk":                    {false, false},
		"service.co.uk":            {false, false},
		"anything.service.co.uk":   {false, false},
		"a.b.c.tags.service.com":   {false, false},
		"api.service.co.uk":        {false, false},
		"otherservice.com":         {true, true},
		"service.de":               {true, true},
		"mtagd.test":               {false, false},
		"shop.test":                {false, true},
		"track.shop.test":          {false, true},
		"shop.example":             {false, true},
		"shop.invalid":             {false, true},
		"shop.localhost":           {false, true},
		"shop.local":               {false, true},
		"shop.internal":            {false, true},
		"shop.nosuchtopleveldomai": {false, true},
	} {
		for private, ok := range map[bool]bool{false: want.public, true: want.private} {
			err := Claimable{Reserved: service, AllowPrivate: private}.Check("domain", name)
			if (err == nil) != ok || (err != nil && (KindOf(err) != KindInvalid || !strings.HasPrefix(err.Error(), "domain "))) {
				t.Errorf("%s, private names allowed: %v: %v, want it claimable: %v", name, private, err, ok)
			}
		}
	}
}

func TestLimitsOfAPartnersClaimsAndLabels(t *testing.T) {
	var usual Partner
	few := Partner{Limits: PartnerLimits{UnverifiedClaims: 1, Labels: 1}}
	free := Partner{Limits: PartnerLimits{UnverifiedClaims: NoLimit, Labels: NoLimit}}
	for _, c := range []struct {
		p           Partner
		n           int
		claim       bool
		labels      int
		label       bool
		nothingLeft bool
	}{
		{usual, 99, true, 19_999, true, false},
		{usual, 100, false, 20_000, false, false},
		{few, 0, true, 0, true, false},
		{few, 1, false, 1, false, false},
		{free, 1_000_000, true, 1_000_000, true, false},
		{free, 0, true, 0, false, true},
	} {
		used := UsableLabels - 1
		if c.nothingLeft {
			used = UsableLabels
		}
		if err := c.p.Limits.CheckUnverifiedClaims(c.n); (err == nil) != c.claim || (err != nil && KindOf(err) != KindLimited) {
			t.Errorf("limits %+v, %d unverified claims: %v", c.p.Limits, c.n, err)
		}
		want := KindLimited
		if c.nothingLeft {
			want = KindUnavailable
		}
		if err := c.p.Limits.CheckLabels(c.labels, used); (err == nil) != c.label || (err != nil && KindOf(err) != want) {
			t.Errorf("limits %+v, %d labels of %d: %v", c.p.Limits, c.labels, used, err)
		}
	}
}

func TestDrawingALabelIsQuickWhileLabelsAreUsable(t *testing.T) {
	seed := maphash.MakeSeed()
	taken := func(label string) bool { return maphash.String(seed, label)%10 != 0 } // nine tenths of all
	const draws = 1000
	tries := 0
	for range draws {
		if label, err := DrawLabel(func(l string) bool { tries++; return taken(l) }); err != nil || taken(label) {
			t.Fatalf("drew %q, %v", label, err)
		}
	}
	if tries > 20*draws { // 10 on average
		t.Errorf("%d draws took %d tries", draws, tries)
	}
}
