package dataset

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/bench/mtagbench/load"
)

// Client calls the partner API, one request at a time.
type Client struct {
	Target load.Target
	Key    string
	http   *fasthttp.HostClient
}

// NewClient makes a client of the server at an address. host is the host of the partner API.
func NewClient(address, host, key string) (*Client, error) {
	t, err := load.NewTarget(address, host, "")
	return &Client{Target: t, Key: key, http: &fasthttp.HostClient{Addr: address, MaxConns: 4}}, err
}

// AddMerchant creates a merchant with a client-side and a preverified tag. It returns a dataset without events.
func (c *Client) AddMerchant(name string) (d Dataset, err error) {
	var merchant struct{ MerchantID string }
	if err := c.create("/v1/partners/merchant", map[string]string{"name": name}, &merchant); err != nil {
		return d, err
	}
	d.Merchant = merchant.MerchantID
	for _, kind := range []string{"client-side", "preverified"} {
		var tag struct{ TagID, Host string }
		if err := c.create("/v1/partners/tracktag/generate", map[string]string{"merchantId": d.Merchant, "type": kind}, &tag); err != nil {
			return d, err
		}
		id := url.PathEscape(tag.TagID)
		answer, err := c.ask("GET", "/v1/partners/tracktag/"+id, nil)
		if err == nil {
			err = json.Unmarshal(answer, &tag)
		}
		if err != nil {
			return d, err
		}
		d.Tags = append(d.Tags, Tag{id, tag.Host})
	}
	return d, nil
}

// create posts in as JSON, and decodes the answer into out.
func (c *Client) create(path string, in map[string]string, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	answer, err := c.ask("POST", path, body)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

const callTimeout = 30 * time.Second

// ask sends a request and returns the body of the answer. A status of 300 or more is an error.
func (c *Client) ask(method, path string, body []byte) ([]byte, error) {
	request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(response)
	request.SetRequestURI("http://" + c.Target.Address.String() + path)
	request.UseHostHeader = true
	request.Header.SetHost(c.Target.Host)
	request.Header.SetMethod(method)
	request.Header.Set("Authorization", "Bearer "+c.Key)
	if body != nil {
		request.Header.SetContentType("application/json")
		request.SetBody(body)
	}
	if err := c.http.DoTimeout(request, response, callTimeout); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if code := response.StatusCode(); code >= 300 {
		return nil, fmt.Errorf("%s %s: %d %.200s", method, path, code, response.Body())
	}
	return slices.Clone(response.Body()), nil
}
