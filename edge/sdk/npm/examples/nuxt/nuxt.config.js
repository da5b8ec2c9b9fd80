export default { telemetry: false, compatibilityDate: '2025-01-01' };
