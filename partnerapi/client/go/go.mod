// The client is a module of its own, so that whoever imports it gets nothing else of mtagd. This line is the only place
// that names its path; it is a placeholder until the module is published.
module example.com/mtagd/client

go 1.24
