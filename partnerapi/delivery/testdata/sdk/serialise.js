// Reads from standard input what tests have for each platform, and prints what its SDK makes of it.
const { createHash } = require("node:crypto")
const { readFileSync } = require("node:fs")
const { Content, CustomData, ServerEvent, UserData } = require("facebook-nodejs-business-sdk")
const protos = require("@google-ads/datamanager/build/protos/protos.json")
const { protobuf } = require("google-gax")
const { fromProto3JSON, toProto3JSON } = require("proto3-json-serializer")

// meta makes an event of the Conversions API of the fields of an event of ours, in clear: the SDK normalises and hashes them.
function meta({ name, time, muid, url, fields: f }) {
	const user = new UserData()
		.setExternalIds([createHash("sha256").update(muid).digest("hex")])
		.setClientIpAddress(f.client_ip_address)
		.setClientUserAgent(f.user_agent)
		.setFbc(f.fbc)
		.setFbp(f.fbp)
	const lists = { email: "setEmails", phone: "setPhones", first_name: "setFirstNames", last_name: "setLastNames", city: "setCities", state: "setStates", zip: "setZips", country: "setCountries" }
	for (const [field, set] of Object.entries(lists)) if (f[field]) user[set]([f[field]])
	const custom = new CustomData().setValue(f.value).setCurrency(f.currency).setOrderId(f.order_id).setSearchString(f.search_term)
	if (f.products) {
		custom
			.setContentType("product")
			.setContentIds(f.products.map(p => p.id))
			.setContents(f.products.map(p => new Content().setId(p.id).setQuantity(p.quantity).setItemPrice(p.price)))
	}
	return new ServerEvent()
		.setEventName(name)
		.setEventTime(time)
		.setEventId(f.event_id)
		.setEventSourceUrl(url)
		.setActionSource(url ? "website" : "system_generated")
		.setUserData(user)
		.setCustomData(custom)
		.normalize()
}

// google reads a request to the Data Manager API as its protocol buffers have it, and writes it again.
const type = protobuf.Root.fromJSON(protos).lookupType("google.ads.datamanager.v1.IngestEventsRequest")
const google = request => toProto3JSON(fromProto3JSON(type, request))

const input = JSON.parse(readFileSync(0, "utf8"))
console.log(JSON.stringify({ meta: input.meta.map(meta), google: input.google.map(google) }))
