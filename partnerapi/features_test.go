package partnerapi

import "testing"

func TestConfig(t *testing.T) {
	p := newService(t).partner("Agency")
	p.get(config).is(200).
		keys("", "partnerId", "preverifiedEnabled", "preverifiedDomain", "features").
		keys("features", "preverified", "clientSide", "serverSide").
		has("partnerId", string(p.ID)).has("preverifiedEnabled", false).has("preverifiedDomain", "").
		has("features.preverified", false).has("features.clientSide", true).has("features.serverSide", true)

	p.enablePreverified()
	p.get(config).is(200).
		has("preverifiedEnabled", true).has("preverifiedDomain", ours).has("features.preverified", true)
}
