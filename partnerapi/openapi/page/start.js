// The page only shows: it sends no request and wants no key.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  supportedSubmitMethods: [],
  validatorUrl: null,
  plugins: [{
    wrapComponents: {
      // The extension of an operation is its command.
      OperationExt: (_, { React: { createElement: h } }) => ({ extensions }) =>
        h("div", { className: "opblock-section" },
          h("div", { className: "opblock-section-header" }, h("h4", { className: "opblock-title" }, "Example")),
          h("p", { className: "example" }, "It takes your API key from a variable of the shell: ", h("code", null, "KEY=mtp_…")),
          h("pre", { className: "example", tabIndex: 0 }, extensions.getIn(["x-codeSamples", 0, "source"]))),
    },
  }],
});
