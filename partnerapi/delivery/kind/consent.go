package kind

// AdConsent is what ad platforms need.
var AdConsent = []string{"ad_storage", "ad_user_data"}

// HasConsent reports whether an event says that its visitor has agreed to all of some categories: its field consent is true, or an
// object in which each of them is true or "granted". What is not stated is not granted.
func HasConsent(fields map[string]any, categories []string) bool {
	switch consent := fields["consent"].(type) {
	case bool:
		return consent || len(categories) == 0
	case map[string]any:
		for _, category := range categories {
			if v := consent[category]; v != true && v != "granted" {
				return false
			}
		}
		return true
	}
	return len(categories) == 0
}
