package tag

// explanation says more about a refusal than its sender learns.
type explanation struct {
	code   string
	path   string // JSON pointer to the place in the event; "" is the whole event
	reason string // what to do
	unread bool   // the event was not read: it has no name, and no fields
}

// explanations has every answer with which POST /mark refuses an event of a known tag, except bodyNotJSON's.
var explanations = map[*answer]explanation{
	tagNotFound:  {"wrong_host", "", "The tag id was sent to a host that is not the tag's. Use the host of the tag's snippet.", true},
	tagNotActive: {"tag_not_active", "", "Create the tag's DNS record, and verify the tag: until then its events are refused.", true},
	tagSuspended: {"tag_suspended", "", "The operator of the service has suspended the tag, its merchant or you. Ask the operator.", true},

	secretWrong:    {"secret_wrong", "", "The header Authorization has something that is not a secret of this merchant. Correct it, or leave it out.", true},
	secretRequired: {"secret_required", "", "The merchant lets only senders with its secret use email, phone and deviceId. Send the secret from your backend, or send a muid.", false},

	eventTooLarge:  {"too_large", "", "Send less: leave out what the reports do not read.", true},
	bodyNotUTF8:    {"not_utf8", "", "The body has bytes that are not UTF-8. Encode it as UTF-8.", true},
	bodyCompressed: {"compressed", "", "Send the body without compression.", true},
	bodyNotObject:  {"not_object", "", "Send the event as one JSON object, or several as an array of objects.", true},
	eventTooDeep:   {"too_deep", "", "Send the event with fewer levels of objects and arrays.", true},
	numberTooLarge: {"number_too_large", "", "Send the number as a string, or leave it out.", true},
	batchEmpty:     {"batch_empty", "", "Send no request when there is no event.", true},
	batchTooLong:   {"batch_too_long", "", "Send the events in several requests.", true},

	noIdentifier:     {"no_identifier", "", "Send one of muid, email, phone and deviceId as a string that is not empty. A page's event has the muid in its cookie _muid, which a browser without the tag does not have.", false},
	muidTooLong:      {"muid_too_long", "/muid", "Send the muid that the browser tag has made, or a shorter one of your own.", false},
	eventMissing:     {"event_missing", "/event", "Send the event's name in the field event.", false},
	eventMalformed:   {"event_malformed", "/event", "A name begins with a capital letter and has only the letters A to Z, in any case, and digits.", false},
	eventIDNoString:  {"event_id_no_string", "/event_id", "Send event_id as a string, or leave it out.", false},
	eventIDTooLong:   {"event_id_too_long", "/event_id", "Send a shorter event_id, or a hash of it.", false},
	noMUIDFound:      {"no_muid_found", "", "Nobody with these identifiers is known. A page must identify the user first, or the event must carry a muid.", false},
	personSuppressed: {"person_suppressed", "", "The person was erased, and later events are refused. Do not send them.", true},

	tooManyFromAddress:      {"too_many_from_address", "", "Send fewer events a second from one address, or send batches; and send refused ones again after Retry-After.", true},
	tooManyForMerchant:      {"too_many_events", "", "The merchant gets more events a second than it may. Send them again after Retry-After, or ask the operator for a higher limit.", true},
	tooManyBytes:            {"too_many_bytes", "", "The merchant has stored as much as it may in a day. Send smaller events, or ask the operator for a higher limit.", true},
	tooManyBytesFromAddress: {"too_many_bytes_from_address", "", "The sender has stored as much as one address may in a day. Ask the operator for a higher limit.", true},
	tooManyBytesOfPartner:   {"too_many_bytes_of_partner", "", "Your merchants together have stored as much as you may in a day. Ask the operator for a higher limit.", true},

	uncertain:   {"uncertain", "", "The service lost its database in the middle of storing the events, and could not find out whether they are stored. Send them again with the same event_id: then each is stored once.", true},
	unavailable: {"unavailable", "", "The service could not store events. Send them again after Retry-After.", true},
	failed:      {"failed", "", "The service failed. Send the event again later; with an event_id it is not recorded twice.", true},
}

// place returns the path of an explanation, or that of type when it is about the name and type has it.
func (f *fields) place(path string) string {
	if path == "/event" && isAbsent(f.Event) && !isAbsent(f.Type) {
		return "/type"
	}
	return path
}

func explain(refused *answer) explanation {
	if e, ok := explanations[refused]; ok {
		return e
	}
	return explanation{"not_json", "", "Make the body with a JSON encoder, not from pieces of text. The offset counts from the first brace or bracket.", true}
}
