___INFO___

{
  "type": "TAG",
  "id": "cvt_mtagd",
  "version": 1,
  "securityGroups": [],
  "displayName": "mtagd",
  "categories": ["ANALYTICS", "ATTRIBUTION"],
  "brand": { "id": "mtagd", "displayName": "mtagd" },
  "description": "Installs the browser tag of mtagd, or sends one of its events. It follows the container's consent.",
  "containerContexts": ["WEB"]
}


___TEMPLATE_PARAMETERS___

[
  {
    "type": "RADIO",
    "name": "does",
    "displayName": "This tag",
    "radioItems": [
      { "value": "install", "displayValue": "installs mtagd and sends page views" },
      { "value": "event", "displayValue": "sends an event" }
    ],
    "simpleValueType": true,
    "defaultValue": "install"
  },
  {
    "type": "TEXT",
    "name": "host",
    "displayName": "Address of the tag host, as https://tags.example.com",
    "simpleValueType": true,
    "valueValidators": [{ "type": "REGEX", "args": ["^https://[^?#]*[^/?#]$"] }],
    "enablingConditions": [{ "paramName": "does", "paramValue": "install", "type": "EQUALS" }]
  },
  {
    "type": "TEXT",
    "name": "tagId",
    "displayName": "Tag id",
    "simpleValueType": true,
    "valueValidators": [{ "type": "NON_EMPTY" }],
    "enablingConditions": [{ "paramName": "does", "paramValue": "install", "type": "EQUALS" }]
  },
  {
    "type": "TEXT",
    "name": "parts",
    "displayName": "Parts and extras besides options, with commas between them",
    "simpleValueType": true,
    "defaultValue": "attribution",
    "enablingConditions": [{ "paramName": "does", "paramValue": "install", "type": "EQUALS" }]
  },
  {
    "type": "TEXT",
    "name": "event",
    "displayName": "Name of the event, as Purchase",
    "simpleValueType": true,
    "valueValidators": [{ "type": "NON_EMPTY" }],
    "enablingConditions": [{ "paramName": "does", "paramValue": "event", "type": "EQUALS" }]
  },
  {
    "type": "SIMPLE_TABLE",
    "name": "fields",
    "displayName": "Fields of the event",
    "simpleTableColumns": [
      { "name": "name", "displayName": "Name", "type": "TEXT", "defaultValue": "" },
      { "name": "value", "displayName": "Value", "type": "TEXT", "defaultValue": "" }
    ],
    "enablingConditions": [{ "paramName": "does", "paramValue": "event", "type": "EQUALS" }]
  }
]


___SANDBOXED_JS_FOR_WEB_TEMPLATE___

const addConsentListener = require('addConsentListener');
const createArgumentsQueue = require('createArgumentsQueue');
const encodeUriComponent = require('encodeUriComponent');
const injectScript = require('injectScript');
const isConsentGranted = require('isConsentGranted');
const makeTableMap = require('makeTableMap');

const mtag = createArgumentsQueue('mtag', 'mtrem');

if (data.does == 'event') {
  mtag('event', data.event, makeTableMap(data.fields || [], 'name', 'value') || {});
  data.gtmOnSuccess();
} else {
  const categories = {};
  ['analytics_storage', 'ad_storage', 'ad_user_data', 'ad_personalization'].forEach((name) => {
    categories[name] = isConsentGranted(name) ? 'granted' : 'denied';
    addConsentListener(name, (category, granted) => {
      const choice = {};
      choice[category] = granted ? 'granted' : 'denied';
      mtag('consent', choice);
    });
  });
  mtag('init', data.host + '?tagId=' + encodeUriComponent(data.tagId), { consent: categories });
  const parts = data.parts ? ',' + data.parts : '';
  injectScript(data.host + '/script?with=options' + encodeUriComponent(parts), data.gtmOnSuccess, data.gtmOnFailure, 'mtagd');
}


___WEB_PERMISSIONS___

[
  {
    "instance": {
      "key": { "publicId": "inject_script", "versionId": "1" },
      "param": [{ "key": "urls", "value": { "type": 2, "listItem": [{ "type": 1, "string": "https://*/script*" }, { "type": 1, "string": "https://*/*/script*" }] } }]
    },
    "clientAnnotations": { "isEditedByUser": true },
    "isRequired": true
  },
  {
    "instance": {
      "key": { "publicId": "access_globals", "versionId": "1" },
      "param": [
        {
          "key": "keys",
          "value": {
            "type": 2,
            "listItem": [
              {
                "type": 3,
                "mapKey": [{ "type": 1, "string": "key" }, { "type": 1, "string": "read" }, { "type": 1, "string": "write" }, { "type": 1, "string": "execute" }],
                "mapValue": [{ "type": 1, "string": "mtag" }, { "type": 8, "boolean": true }, { "type": 8, "boolean": true }, { "type": 8, "boolean": true }]
              },
              {
                "type": 3,
                "mapKey": [{ "type": 1, "string": "key" }, { "type": 1, "string": "read" }, { "type": 1, "string": "write" }, { "type": 1, "string": "execute" }],
                "mapValue": [{ "type": 1, "string": "mtrem" }, { "type": 8, "boolean": true }, { "type": 8, "boolean": true }, { "type": 8, "boolean": false }]
              }
            ]
          }
        }
      ]
    },
    "clientAnnotations": { "isEditedByUser": true },
    "isRequired": true
  },
  {
    "instance": {
      "key": { "publicId": "access_consent", "versionId": "1" },
      "param": [
        {
          "key": "consentTypes",
          "value": {
            "type": 2,
            "listItem": [
              {
                "type": 3,
                "mapKey": [{ "type": 1, "string": "consentType" }, { "type": 1, "string": "read" }, { "type": 1, "string": "write" }],
                "mapValue": [{ "type": 1, "string": "analytics_storage" }, { "type": 8, "boolean": true }, { "type": 8, "boolean": false }]
              },
              {
                "type": 3,
                "mapKey": [{ "type": 1, "string": "consentType" }, { "type": 1, "string": "read" }, { "type": 1, "string": "write" }],
                "mapValue": [{ "type": 1, "string": "ad_storage" }, { "type": 8, "boolean": true }, { "type": 8, "boolean": false }]
              },
              {
                "type": 3,
                "mapKey": [{ "type": 1, "string": "consentType" }, { "type": 1, "string": "read" }, { "type": 1, "string": "write" }],
                "mapValue": [{ "type": 1, "string": "ad_user_data" }, { "type": 8, "boolean": true }, { "type": 8, "boolean": false }]
              },
              {
                "type": 3,
                "mapKey": [{ "type": 1, "string": "consentType" }, { "type": 1, "string": "read" }, { "type": 1, "string": "write" }],
                "mapValue": [{ "type": 1, "string": "ad_personalization" }, { "type": 8, "boolean": true }, { "type": 8, "boolean": false }]
              }
            ]
          }
        }
      ]
    },
    "clientAnnotations": { "isEditedByUser": true },
    "isRequired": true
  }
]


___TESTS___

scenarios:
- name: It installs the tag with the container's consent
  code: |-
    mock('isConsentGranted', (name) => name == 'analytics_storage');
    mock('injectScript', (url, success) => {
      assertThat(url).isEqualTo('https://tags.example.com/script?with=options%2Cattribution');
      success();
    });
    runCode({ does: 'install', host: 'https://tags.example.com', tagId: 'cs_1', parts: 'attribution' });
    assertApi('gtmOnSuccess').wasCalled();
- name: It sends an event
  code: |-
    runCode({ does: 'event', event: 'Purchase', fields: [{ name: 'value', value: '89' }] });
    assertApi('gtmOnSuccess').wasCalled();
    assertApi('injectScript').wasNotCalled();


___NOTES___

The tag needs no consent settings of its own: it waits for analytics_storage by itself.
