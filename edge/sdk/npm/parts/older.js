if (typeof document != 'undefined') {
(()=>{var n=window.mtrem=window.mtrem||[];function c(e,t){n[e]||(n[e]=!0,t())}function r(e,t){c(e,()=>n[n.running?"push":"unshift"](["part",e,t]))}var u=5e3;r("older",(e,t)=>{let{NavigateEvent:i,Temporal:s}=window;if(!i){for(let o of["pushState","replaceState"]){let a=history[o];history[o]=function(...p){a.apply(this,p),t.$()}}addEventListener("popstate",t.$),t.$()}s||setTimeout(()=>t.Y=Intl.DateTimeFormat().resolvedOptions().timeZone,Math.max(0,u-performance.now()))});})();
}
